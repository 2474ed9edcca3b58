import { heightOf, rowAt, scrollTopOf, type ScrollRange } from '../../lib/scrollRange'

export const ROW_PX = 20
const PAGE = 500
/** Of pages kept; at a hundred bytes a line about two megabytes. */
const PAGES_MAX = 40
const ASKED_MAX = 3

export interface LogPage {
  readonly first: number
  readonly total: number
  readonly lines: readonly string[]
}

interface Options {
  readonly scroller: HTMLElement
  readonly ask: (first: number, count: number) => Promise<LogPage>
  readonly onTotal: (total: number) => void
  readonly onFailed: (error: Error) => void
  readonly onScrolledAway: () => void
  readonly styles: Readonly<Record<string, string | undefined>>
}

/**
 * A log of any length: rows are taken again as one scrolls, lines come by number, and only those in view are asked for.
 * Written by hand, since a million lines scrolled past are a million reasons not to render them.
 */
export class LogView {
  readonly #space = document.createElement('div')
  readonly #pages = new Map<number, readonly string[]>()
  readonly #asked = new Set<number>()
  readonly #rows: HTMLElement[] = []
  readonly #stop = new AbortController()
  #total = 0
  #isFollowing = true
  #frame: number | undefined
  #wanted = ''
  #marked = -1
  #wroteTop = -1

  constructor(readonly options: Options) {
    const { scroller, onScrolledAway } = options
    this.#space.style.position = 'relative'
    scroller.replaceChildren(this.#space)
    scroller.addEventListener(
      'scroll',
      () => {
        if (this.#isFollowing && Math.abs(scroller.scrollTop - this.#wroteTop) > 4 && !this.#isAtEnd) onScrolledAway()
        this.#drawSoon()
      },
      { passive: true, signal: this.#stop.signal },
    )
  }

  close(): void {
    this.#stop.abort()
    if (this.#frame !== undefined) cancelAnimationFrame(this.#frame)
    this.options.scroller.replaceChildren()
  }

  /** There may be more by now. */
  refresh(): void {
    // The last page may have been cut short when it came.
    const last = Math.floor(Math.max(0, this.#total - 1) / PAGE)
    this.#pages.delete(last)
    void this.#load(last)
  }

  follow(isFollowing: boolean): void {
    this.#isFollowing = isFollowing
    if (isFollowing) this.#drawSoon()
  }

  /** Text to mark, and the line to show and mark as the found one; -1: none. */
  show(wanted: string, line: number): void {
    this.#wanted = wanted.toLowerCase()
    this.#marked = line
    if (line >= 0) {
      this.#isFollowing = false
      this.options.scroller.scrollTop = scrollTopOf(this.#range, Math.max(0, line - this.#range.viewPx / ROW_PX / 3))
    }
    this.#drawSoon()
  }

  get #range(): ScrollRange {
    return { rows: this.#total, rowPx: ROW_PX, viewPx: this.options.scroller.clientHeight }
  }

  get #isAtEnd(): boolean {
    const { scroller } = this.options
    return scroller.scrollTop + scroller.clientHeight >= heightOf(this.#range) - ROW_PX
  }

  #drawSoon(): void {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = undefined
      this.#draw()
    })
  }

  #draw(): void {
    const { scroller, styles } = this.options
    const range = this.#range
    this.#space.style.height = `${heightOf(range)}px`
    if (this.#isFollowing) {
      scroller.scrollTop = heightOf(range)
      this.#wroteTop = scroller.scrollTop
    }
    const top = rowAt(range, scroller.scrollTop)
    const first = Math.floor(top)
    const count = Math.min(this.#total - first, Math.ceil(range.viewPx / ROW_PX) + 1)
    while (this.#rows.length < count) {
      const row = rowElement(styles)
      this.#rows.push(row)
      this.#space.append(row)
    }
    this.#rows.forEach((row, at) => {
      const line = first + at
      row.hidden = at >= count
      if (at >= count) return
      row.style.transform = `translateY(${scroller.scrollTop + (line - top) * ROW_PX}px)`
      this.#write(row, line)
    })
    for (let page = Math.floor(first / PAGE); page <= Math.floor((first + Math.max(0, count - 1)) / PAGE); page += 1) {
      if (!this.#pages.has(page)) void this.#load(page)
    }
  }

  #write(row: HTMLElement, line: number): void {
    const [number, text] = [row.firstElementChild, row.lastElementChild]
    const said = this.#pages.get(Math.floor(line / PAGE))?.[line % PAGE]
    const key = `${line} ${said === undefined ? '' : 'said'} ${this.#wanted} ${this.#marked === line}`
    if (row.dataset.key === key || number === null || text === null) return
    row.dataset.key = said === undefined ? '' : key
    number.textContent = String(line + 1)
    row.classList.toggle(this.options.styles.found ?? 'found', line === this.#marked)
    text.replaceChildren(...marked(said ?? '…', this.#wanted))
  }

  async #load(page: number): Promise<void> {
    // While one scrolls past thousands of pages only those where one is now are worth asking for.
    if (this.#asked.has(page) || this.#asked.size >= ASKED_MAX) return
    this.#asked.add(page)
    try {
      const { lines, total } = await this.options.ask(page * PAGE, PAGE)
      if (this.#stop.signal.aborted) return
      this.#pages.set(page, lines)
      if (this.#pages.size > PAGES_MAX) {
        const oldest = this.#pages.keys().next().value
        if (oldest !== undefined && oldest !== page) this.#pages.delete(oldest)
      }
      if (total !== this.#total) {
        this.#total = total
        this.options.onTotal(total)
      }
      this.#drawSoon()
    } catch (error) {
      if (!this.#stop.signal.aborted) this.options.onFailed(error instanceof Error ? error : new Error(String(error)))
    } finally {
      this.#asked.delete(page)
      if (!this.#stop.signal.aborted) this.#drawSoon()
    }
  }
}

function rowElement(styles: Readonly<Record<string, string | undefined>>): HTMLElement {
  const row = document.createElement('div')
  row.className = styles.line ?? ''
  const number = document.createElement('span')
  number.className = styles.number ?? ''
  row.append(number, document.createElement('span'))
  return row
}

function marked(text: string, wanted: string): readonly (string | HTMLElement)[] {
  const at = wanted === '' ? -1 : text.toLowerCase().indexOf(wanted)
  if (at < 0) return [text]
  const mark = document.createElement('mark')
  mark.textContent = text.slice(at, at + wanted.length)
  return [text.slice(0, at), mark, ...marked(text.slice(at + wanted.length), wanted)]
}
