import { expect, it } from 'vitest'
import { paintSparkline } from './sparkline'

function painted(values: readonly number[]): readonly (readonly number[])[] {
  const bars: (readonly number[])[] = []
  const context = { fillRect: (...bar: readonly number[]) => bars.push(bar) } as unknown as CanvasRenderingContext2D
  paintSparkline(context, values, { x: 10, y: 100, width: 40, height: 16 })
  return bars
}

it('stands on its ground, the largest value as high as its box', () => {
  const bars = painted([1, 0, 4, 2])
  expect(bars.map(([x]) => x)).toEqual([10, 30, 40])
  expect(bars.map(([, y = 0, , tall = 0]) => y + tall)).toEqual([116, 116, 116])
  expect(bars.map(([, , , tall]) => tall)).toEqual([4, 16, 8])
})

it('shows a little of what is almost nothing, and nothing of nothing', () => {
  expect(painted([1e9, 1]).map(([, , , tall]) => tall)).toEqual([16, 1])
  expect(painted([])).toEqual([])
  expect(painted([0, 0])).toEqual([])
})
