import { describe, expect, it } from 'vitest'
import { extent, linearScale, logScale } from './scales'

describe('scales', () => {
  it('put powers of ten at equal distances', () => {
    const { at, ticks } = logScale([1, 1000], [0, 300])
    expect(ticks).toEqual([1, 10, 100, 1000])
    expect(ticks.map((tick) => Math.round(at(tick)))).toEqual([0, 100, 200, 300])
  })
  it('show steps between where few powers are in range', () => {
    expect(logScale([8, 60], [0, 1]).ticks).toEqual([10, 20, 50])
  })
  it('never show more than eight ticks', () => {
    expect(logScale([1e-6, 1e9], [0, 1]).ticks.length).toBeLessThanOrEqual(8)
  })
  it('start at nought with round steps', () => {
    expect(linearScale(9.4, [100, 0]).ticks).toEqual([0, 2, 4, 6, 8])
    expect(linearScale(10, [100, 0]).at(5)).toBe(50)
    expect(linearScale(0, [0, 1]).ticks[0]).toBe(0)
  })
  it('leave out what has no place on a log axis', () => {
    expect(extent([0, -3, Number.NaN, 10, 100], 2)).toEqual([5, 200])
    expect(extent([])).toEqual([1, 10])
  })
})
