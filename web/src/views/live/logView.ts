import { heightOf, rowAt, scrollTopOf, type ScrollRange } from '../../lib/scrollRange'

export const ROW_PX = 20
const PAGE = 500
/** Of pages kept; at a hundred bytes a line about two megabytes. */
const PAGES_MAX = 40
const ASKED_MAX = 3
/** Lines beyond the view that are asked for with it. */
const AHEAD = 100
/** Who flies over more than a page in a frame reads nothing: lines are asked for where one slows down. */
const SETTLED_MS = 60

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

interface Row {
  readonly element: HTMLElement
  readonly number: Text
  readonly said: HTMLElement
  /** What it shows, so that it is written only where that changes. */
  line: number
  text: string | undefined
  look: string
}

/**
 * A log of any length: as many rows as are in view, filled anew as one scrolls; lines come by number, and only those
 * near the view are asked for. Written by hand, since a million lines scrolled past are a million reasons not to render
 * them. A frame reads the bar's place once and then only writes.
 */
export class LogView {
  readonly #space = document.createElement('div')
  /** Stays in view while the space behind it is scrolled. */
  readonly #window = document.createElement('div')
  readonly #pages = new Map<number, readonly string[]>()
  readonly #asked = new Set<number>()
  readonly #rows: Row[] = []
  readonly #stop = new AbortController()
  readonly #resized: ResizeObserver
  #total = 0
  #isTotalSaid = false
  #refreshes = 0
  #viewPx: number
  #spacePx = -1
  #isFollowing = true
  #frame: number | undefined
  #settling: number | undefined
  #wanted = ''
  #marked = -1
  #awaited = -1
  #wroteTop = -1
  #drawnFirst = 0

  constructor(readonly options: Options) {
    const { scroller, styles, onScrolledAway } = options
    this.#window.className = styles.window ?? ''
    this.#space.append(this.#window)
    scroller.replaceChildren(this.#space)
    this.#viewPx = scroller.clientHeight
    this.#resized = new ResizeObserver(() => {
      this.#viewPx = scroller.clientHeight
      this.#drawSoon()
    })
    this.#resized.observe(scroller)
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
    this.#resized.disconnect()
    window.clearTimeout(this.#settling)
    if (this.#frame !== undefined) cancelAnimationFrame(this.#frame)
    this.options.scroller.replaceChildren()
  }

  /** There may be more by now, or fewer at another moment. */
  refresh(): void {
    this.#refreshes += 1
    void this.#load(Math.floor(Math.max(0, this.#total - 1) / PAGE))
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
      this.#goTo(line)
    }
    this.#drawSoon()
  }

  /** A line may be asked for before anything is known of the log: then it is gone to as soon as it is there. */
  #goTo(line: number): void {
    this.#awaited = line < this.#total ? -1 : line
    this.#stretch()
    this.options.scroller.scrollTop = scrollTopOf(this.#range, Math.max(0, line - this.#viewPx / ROW_PX / 3))
  }

  get #range(): ScrollRange {
    return { rows: this.#total, rowPx: ROW_PX, viewPx: this.#viewPx }
  }

  get #isAtEnd(): boolean {
    return this.options.scroller.scrollTop + this.#viewPx >= heightOf(this.#range) - ROW_PX
  }

  #drawSoon(): void {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = undefined
      this.#draw()
    })
  }

  /** As high as all lines; written only where it changed, since it lays the space out anew. */
  #stretch(): void {
    const height = heightOf(this.#range)
    if (height === this.#spacePx) return
    this.#spacePx = height
    this.#space.style.height = `${height}px`
  }

  #draw(): void {
    const { scroller } = this.options
    const range = this.#range
    this.#stretch()
    if (this.#isFollowing) {
      scroller.scrollTop = heightOf(range)
      this.#wroteTop = scroller.scrollTop
    }
    const top = rowAt(range, this.#isFollowing ? this.#wroteTop : scroller.scrollTop)
    const first = Math.floor(top)
    const count = Math.max(0, Math.min(this.#total - first, Math.ceil(range.viewPx / ROW_PX) + 1))
    while (this.#rows.length < count) this.#rows.push(this.#addRow())
    this.#window.style.transform = `translateY(${(first - top) * ROW_PX}px)`
    this.#rows.forEach((row, at) => {
      const isShown = at < count
      if (row.element.hidden === isShown) row.element.hidden = !isShown
      if (isShown) this.#write(row, first + at)
    })
    const isFlying = Math.abs(first - this.#drawnFirst) > PAGE
    this.#drawnFirst = first
    if (isFlying) this.#settleSoon()
    else this.#loadNear(first, count)
  }

  #settleSoon(): void {
    window.clearTimeout(this.#settling)
    this.#settling = window.setTimeout(() => this.#drawSoon(), SETTLED_MS)
  }

  #loadNear(first: number, count: number): void {
    const last = Math.max(0, this.#total - 1)
    const pageOf = (line: number) => Math.floor(Math.min(last, Math.max(0, line)) / PAGE)
    // What is in view first.
    const pages = new Set([pageOf(first), pageOf(first + count - 1), pageOf(first + count + AHEAD), pageOf(first - AHEAD)])
    for (const page of pages) {
      const known = this.#pages.get(page)
      // A page that was the last one when it came was cut short.
      if (known === undefined || known.length < Math.min(PAGE, this.#total - page * PAGE)) void this.#load(page)
    }
  }

  #addRow(): Row {
    const { styles } = this.options
    const [element, number, said] = [document.createElement('div'), document.createElement('span'), document.createElement('span')]
    element.className = styles.line ?? ''
    number.className = styles.number ?? ''
    const numberText = document.createTextNode('')
    number.append(numberText)
    said.append('')
    element.append(number, said)
    this.#window.append(element)
    return { element, number: numberText, said, line: -1, text: undefined, look: '' }
  }

  #write(row: Row, line: number): void {
    const text = this.#pages.get(Math.floor(line / PAGE))?.[line % PAGE]
    const isFound = this.#marked === line
    const look = `${isFound ? 'found' : ''} ${this.#wanted}`
    if (row.line === line && row.text === text && row.look === look) return
    if (row.line !== line) row.number.data = String(line + 1)
    if (row.look !== look) row.element.classList.toggle(this.options.styles.found ?? 'found', isFound)
    const parts = marked(text ?? '…', this.#wanted)
    const only = row.said.firstChild
    // Most lines are plain: their one text is changed in place, and nothing is made or thrown away.
    if (parts.length === 1 && row.said.childNodes.length === 1 && only instanceof Text) only.data = text ?? '…'
    else row.said.replaceChildren(...parts)
    Object.assign(row, { line, text, look })
  }

  async #load(page: number): Promise<void> {
    if (this.#asked.has(page) || this.#asked.size >= ASKED_MAX) return
    this.#asked.add(page)
    const asked = this.#refreshes
    try {
      const { lines, total } = await this.options.ask(page * PAGE, PAGE)
      if (this.#stop.signal.aborted) return
      this.#keep(page, lines)
      if (total !== this.#total || !this.#isTotalSaid) {
        this.#total = total
        this.#isTotalSaid = true
        this.options.onTotal(total)
        if (this.#awaited >= 0) this.#goTo(this.#awaited)
      }
    } catch (error) {
      if (!this.#stop.signal.aborted) this.options.onFailed(error instanceof Error ? error : new Error(String(error)))
    } finally {
      this.#asked.delete(page)
      if (!this.#stop.signal.aborted) {
        // Asked before another moment was looked at: its answer is of the one before.
        if (asked !== this.#refreshes) void this.#load(page)
        this.#drawSoon()
      }
    }
  }

  /** A line that was said stays said: of two answers for a page the longer one is kept. */
  #keep(page: number, lines: readonly string[]): void {
    if ((this.#pages.get(page)?.length ?? -1) >= lines.length) return
    this.#pages.delete(page)
    this.#pages.set(page, lines)
    if (this.#pages.size <= PAGES_MAX) return
    const oldest = this.#pages.keys().next().value
    if (oldest !== undefined && oldest !== page) this.#pages.delete(oldest)
  }
}

function marked(text: string, wanted: string): readonly (string | HTMLElement)[] {
  const at = wanted === '' ? -1 : text.toLowerCase().indexOf(wanted)
  if (at < 0) return [text]
  const mark = document.createElement('mark')
  mark.textContent = text.slice(at, at + wanted.length)
  return [text.slice(0, at), mark, ...marked(text.slice(at + wanted.length), wanted)]
}
