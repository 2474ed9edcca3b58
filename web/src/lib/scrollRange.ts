/** Browsers give up on elements higher than some ten million pixels; beyond this, a pixel of the bar is several rows. */
export const HEIGHT_PX_MAX = 8_000_000

/** How a long list is scrolled: rows of equal height behind a bar that may be shorter than all of them together. */
export interface ScrollRange {
  readonly rows: number
  readonly rowPx: number
  readonly viewPx: number
}

/** Height of what is scrolled. */
export const heightOf = ({ rows, rowPx }: ScrollRange): number => Math.min(rows * rowPx, HEIGHT_PX_MAX)

/** The first row in view, with the part of it that is above, from the bar's place; at the bar's end the last row is in view. */
export function rowAt(range: ScrollRange, scrollTop: number): number {
  const { rows, rowPx, viewPx } = range
  const last = Math.max(0, rows - viewPx / rowPx)
  const way = heightOf(range) - viewPx
  return way <= 0 ? 0 : Math.min(last, Math.max(0, (scrollTop / way) * last))
}

/** Where the bar stands when a row is the first in view. */
export function scrollTopOf(range: ScrollRange, row: number): number {
  const { rows, rowPx, viewPx } = range
  const last = Math.max(0, rows - viewPx / rowPx)
  const way = heightOf(range) - viewPx
  return last <= 0 ? 0 : Math.max(0, Math.min(1, row / last)) * Math.max(0, way)
}
