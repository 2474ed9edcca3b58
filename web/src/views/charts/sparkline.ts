/** Where on a canvas; CSS pixels. */
export interface Box {
  readonly x: number
  readonly y: number
  readonly width: number
  readonly height: number
}

/** A shape at the size of a word: bars from nought, in the colour that the context has. */
export function paintSparkline(context: CanvasRenderingContext2D, values: readonly number[], { x, y, width, height }: Box): void {
  const top = Math.max(...values, 0)
  if (top <= 0) return
  const step = width / values.length
  values.forEach((value, index) => {
    if (value <= 0) return
    const tall = Math.max(1, (value / top) * height)
    context.fillRect(x + index * step, y + height - tall, Math.max(1, step - 0.4), tall)
  })
}
