import { expect, it } from 'vitest'
import { sortedRows } from './sorting'

it('sorts numbers and words, ties in their order, and what is missing last both ways', () => {
  const rows = [{ n: 2, k: 'b' }, { n: null, k: 'x' }, { n: 10, k: 'a10' }, { n: 2, k: 'a9' }, { n: Number.NaN, k: '' }]
  const numbers = (isDescending: boolean) => sortedRows(rows, (row) => row.n, isDescending).map((row) => row.k)
  expect(numbers(false)).toEqual(['b', 'a9', 'a10', 'x', ''])
  expect(numbers(true)).toEqual(['a10', 'b', 'a9', 'x', ''])
  expect(sortedRows(rows, (row) => row.k, false).map((row) => row.k)).toEqual(['', 'a9', 'a10', 'b', 'x'])
})
