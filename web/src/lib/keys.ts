/** Every key that does something, who listens to it now, and what the overlay says about it. */
export interface Binding {
  /** 'i', 'shift+1', 'ctrl+k', 'Escape', or two after each other: 'g t'. Letters are written small. */
  readonly keys: string
  readonly words: string
  readonly group: string
  readonly run: (event: KeyboardEvent) => void
  /** Not listed among commands: it only means something where the pointer is. */
  readonly isKeyOnly?: boolean
}

const CHORD_MS = 900

/** The bindings of what is on screen; the newest wins where two want one key. */
export class Keys {
  #bindings: readonly Binding[] = []
  #first = ''
  #firstAt = -Infinity
  readonly #listeners = new Set<() => void>()

  readonly bindings = (): readonly Binding[] => this.#bindings

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  bind(bindings: readonly Binding[]): () => void {
    this.#bindings = [...this.#bindings, ...bindings]
    this.#tell()
    return () => {
      this.#bindings = this.#bindings.filter((one) => !bindings.includes(one))
      this.#tell()
    }
  }

  /** Acts on a key; true where something did. */
  press(event: KeyboardEvent, { isTyping, singleKeys }: { readonly isTyping: boolean; readonly singleKeys: boolean }): boolean {
    const name = nameOf(event)
    if (name === '') return false
    const isChord = event.timeStamp - this.#firstAt < CHORD_MS
    const wanted = isChord && !isTyping ? [`${this.#first} ${name}`, name] : [name]
    this.#firstAt = -Infinity
    for (const keys of wanted) {
      const found = this.#bindings.findLast((binding) => binding.keys === keys)
      if (found === undefined) continue
      if (isLetter(keys) && (isTyping || !singleKeys)) continue
      if (isTyping && !keys.includes('ctrl+')) continue
      event.preventDefault()
      found.run(event)
      return true
    }
    if (!isTyping && singleKeys && this.#bindings.some((binding) => binding.keys.startsWith(`${name} `))) {
      this.#first = name
      this.#firstAt = event.timeStamp
      return true
    }
    return false
  }

  #tell(): void {
    for (const listener of this.#listeners) listener()
  }
}

/** The page's own. */
export const keys = new Keys()

const isLetter = (name: string): boolean => name.split(' ').some((key) => key.replace('shift+', '').length === 1)

/** ctrl stands for Command on a Mac. Shift is part of what a letter or a sign is, except where it is asked for. */
function nameOf(event: KeyboardEvent): string {
  if (event.altKey || event.key === 'Shift' || event.key === 'Control' || event.key === 'Meta') return ''
  const held = event.ctrlKey || event.metaKey ? 'ctrl+' : ''
  const digit = /^Digit([0-9])$/.exec(event.code)?.[1]
  if (event.shiftKey && digit !== undefined && held === '') return `shift+${digit}`
  if (event.key === ' ') return `${held}Space`
  if (event.key.length > 1) return `${held}${event.shiftKey ? 'shift+' : ''}${event.key}`
  const letter = event.key.toLowerCase()
  return `${held}${event.shiftKey && letter !== letter.toUpperCase() ? 'shift+' : ''}${letter}`
}

/** A key as it is printed on a board. */
export function printed(name: string): string {
  const words: Readonly<Record<string, string>> = {
    ArrowLeft: '←', ArrowRight: '→', ArrowUp: '↑', ArrowDown: '↓', Escape: 'Esc', Backspace: '⌫', ctrl: 'Ctrl', shift: 'Shift',
  }
  return name
    .split(' ')
    .map((key) => key.split('+').map((part) => words[part] ?? (part.length === 1 ? part.toUpperCase() : part)).join(' '))
    .join(' then ')
}
