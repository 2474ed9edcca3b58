import { describe, expect, it } from 'vitest'
import { isDifferent, missing, onlyIn, waterfallBars, type ComparedCell, type ComparedKernel, type Comparison } from './comparison'

const comparison = (deltas: Readonly<Record<string, number>>, start = 1000): Comparison => ({
  v: 'r.b',
  place: 1,
  start_ns: start,
  end_ns: start + Object.values(deltas).reduce((a, b) => a + b, 0),
  delta_ns: null,
  ratio: null,
  waterfall: Object.entries(deltas).map(([label, delta_ns]) => ({ label, delta_ns })),
  verdict: '',
  sentence: '',
})

describe('a waterfall', () => {
  it('leads from the one number to the other, the largest change first, each bar from where the last one ended', () => {
    const bars = waterfallBars(comparison({ a: -10, b: 300, c: 0, d: -45 }))
    expect(bars.map(({ label }) => label)).toEqual(['base', 'b', 'd', 'a', 'this'])
    bars.slice(1, -1).forEach((bar, at) => expect(bar.from).toBe(bars[at]?.to))
    expect(missing(bars)).toBe(0)
  })

  it('puts what is small together, and still adds up', () => {
    const bars = waterfallBars(comparison(Object.fromEntries(Array.from({ length: 30 }, (_, at) => [`f${at}`, (at - 11) * 7]))), 5)
    expect(bars).toHaveLength(1 + 5 + 1 + 1)
    expect(bars.at(-2)?.label).toBe('others')
    expect(missing(bars)).toBe(0)
  })

  it('does not hide a sum that misses something', () => {
    expect(missing(waterfallBars({ ...comparison({ a: -10 }), end_ns: 900 }))).toBe(-90)
  })

  it('is none where a number is missing', () => expect(waterfallBars({ ...comparison({}), start_ns: null })).toEqual([]))
})

describe('kernels', () => {
  const cell = (p10: number, p90: number): ComparedCell => ({ count: 1, total_ns: 1, duration_ns: 1, bound: 'dram', delta_ns: 0, ratio: { value: (p10 + p90) / 2, p10, p90 } })
  const kernel = (...versions: readonly (ComparedCell | null)[]): ComparedKernel => ({ key: 'k', name: 'k', shape: '', op: '', family: 'gemm', versions })

  it('differ where the ratio is beyond doubt, or one side has none', () => {
    expect(isDifferent(kernel(cell(1, 1), cell(0.9, 1.1)), 0)).toBe(false)
    expect(isDifferent(kernel(cell(1, 1), cell(0.6, 0.8)), 0)).toBe(true)
    expect(isDifferent(kernel(cell(1, 1), null), 0)).toBe(true)
  })

  it('of one side only are listed with it', () => {
    const kernels = [kernel(cell(1, 1), null), kernel(null, cell(1, 1)), kernel(cell(1, 1), cell(1, 1))]
    expect(onlyIn(kernels, 0)).toEqual([kernels[0]])
    expect(onlyIn(kernels, 1)).toEqual([kernels[1]])
  })
})
