import { expect, it } from 'vitest'
import { goalOf, scopeOf } from './goals'

it.each([
  ['12.4ms', { kind: 'time', ns: 12.4e6 }],
  [' 3 us', { kind: 'time', ns: 3000 }],
  ['step 120', { kind: 'step', step: 120 }],
  ['seq 88112', { kind: 'launch', row: 88112 }],
  ['offset 40', { kind: 'offset', at: 40 }],
])('%s is a place to go to', (typed, goal) => expect(goalOf(typed)).toMatchObject(goal))

it.each(['', '12', '1.2.3ms', 'step', 'offset -3'])('%j is none', (typed) => expect(goalOf(typed)).toBeNull())

it('narrows by its first sign', () => {
  expect(scopeOf('> fit')).toEqual({ scope: 'commands', text: 'fit' })
  expect(scopeOf('gemm')).toEqual({ scope: 'all', text: 'gemm' })
})
