import { describe, expect, it } from 'vitest'
import { HEIGHT_PX_MAX, heightOf, rowAt, scrollTopOf } from './scrollRange'

describe.each([0, 1, 5, 400, 50_000, 1_000_000, 40_000_000])('a list of %i rows', (rows) => {
  const range = { rows, rowPx: 20, viewPx: 210 }
  const last = Math.max(0, rows - 10.5)

  it('is never higher than a browser bears', () => expect(heightOf(range)).toBeLessThanOrEqual(HEIGHT_PX_MAX))

  it('is seen from its first row to its last', () => {
    expect(rowAt(range, 0)).toBe(0)
    expect(rowAt(range, 1e12)).toBeCloseTo(last)
    expect(rowAt(range, heightOf(range) - range.viewPx)).toBeCloseTo(last)
  })

  it('comes to the row that is asked for', () => {
    for (const share of [0, 0.3, 0.77, 1]) expect(rowAt(range, scrollTopOf(range, share * last))).toBeCloseTo(share * last, 3)
  })
})
