/** From values to pixels along one axis, and the values worth a tick. */
export interface Scale {
  readonly at: (value: number) => number
  readonly ticks: readonly number[]
}

/** Powers of ten; where few are in range also 2 and 5 times them. */
export function logScale([low, high]: readonly [number, number], [from, to]: readonly [number, number]): Scale {
  const [a, b] = [Math.log10(low), Math.log10(high)]
  const span = b - a || 1
  const at = (value: number) => from + ((Math.log10(value) - a) / span) * (to - from)
  const steps = span <= 2 ? [1, 2, 5] : [1]
  const ticks: number[] = []
  for (let power = Math.floor(a); power <= Math.ceil(b); power += 1) {
    for (const step of steps) {
      const value = step * 10 ** power
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value)
    }
  }
  const every = Math.max(1, Math.ceil(ticks.length / 8))
  return { at, ticks: ticks.filter((_, index) => index % every === 0) }
}

/** Round steps of 1, 2 or 5 from 0 on. */
export function linearScale(high: number, [from, to]: readonly [number, number], wanted = 5): Scale {
  const top = high > 0 ? high : 1
  const rough = top / wanted
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = power * ([1, 2, 5, 10].find((one) => one * power >= rough) ?? 10)
  const ticks = Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => index * step)
  return { at: (value) => from + (value / top) * (to - from), ticks }
}

/** The smallest and largest of the positive values, a little apart where they are equal. */
export function extent(values: readonly number[], padding = 1.3): readonly [number, number] {
  const positive = values.filter((value) => value > 0 && Number.isFinite(value))
  if (positive.length === 0) return [1, 10]
  return [Math.min(...positive) / padding, Math.max(...positive) * padding]
}
