/** Names short enough for a lane: without return type, namespaces and template arguments. */
export function shortKernel(name: string): string {
  const bare = name.replace(/^(void|__global__)\s+/, '').replace(/<.*$/s, '').replace(/\(.*$/s, '')
  const last = bare.split('::').at(-1) ?? bare
  return last.trim() === '' ? name.slice(0, 48) : last.trim()
}

/** Advances of a font's characters, measured once: text is fitted without asking the canvas again. */
export class Advances {
  readonly #ascii = new Float64Array(128)
  readonly #wide: number
  readonly #ellipsis: number
  constructor(measure: (text: string) => number) {
    for (let code = 32; code < 127; code += 1) this.#ascii[code] = measure(String.fromCharCode(code))
    this.#wide = measure('M')
    this.#ellipsis = measure('…')
  }

  width(text: string): number {
    let sum = 0
    for (let at = 0; at < text.length; at += 1) sum += this.#of(text.charCodeAt(at))
    return sum
  }

  /** As much of the text as fits, with an ellipsis where some is cut; '' where not even two signs fit. */
  fitted(text: string, room: number): string {
    let sum = 0
    let cut = 0
    for (let at = 0; at < text.length; at += 1) {
      sum += this.#of(text.charCodeAt(at))
      if (sum > room) return cut < 2 ? '' : `${text.slice(0, cut)}…`
      if (sum + this.#ellipsis <= room) cut = at + 1
    }
    return text
  }

  #of(code: number): number {
    return code < 128 ? (this.#ascii[code] ?? 0) : this.#wide
  }
}
