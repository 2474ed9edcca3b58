import { describe, expect, it } from 'vitest'
import { compareSearch, newRunSearch, parseSearch, runSearch, stringifySearch, timelineSearch } from './search'

describe('addresses', () => {
  it('say lists as repeated names, and come back as they went', () => {
    const search = { v: ['r1.h100_sxm', 'r2.h100_sxm:dram_gbps=6000,sm=160'], diff: true as const }
    expect(stringifySearch(search)).toBe('?v=r1.h100_sxm&v=r2.h100_sxm:dram_gbps%3D6000,sm%3D160&diff=1')
    expect(compareSearch(parseSearch(stringifySearch(search)))).toEqual(search)
    expect(newRunSearch(parseSearch('?gpu=l4'))).toEqual({ gpu: ['l4'] })
  })

  it.each([
    ['at=12', { at: 12 }],
    ['at=-1', {}],
    ['at=1.5', {}],
    ['at=', {}],
    ['at=now', {}],
    ['at=3&more=yes', { at: 3 }],
  ])('%s means %j', (said, meant) => expect(runSearch(parseSearch(said))).toEqual(meant))

  it('leave out what means nothing', () => {
    expect(timelineSearch(parseSearch('t0=0&t1=5e6&align=sideways&color=bound&q='))).toEqual({ t0: 0, t1: 5e6, color: 'bound' })
    expect(stringifySearch({ a: undefined, b: null, c: false })).toBe('')
  })

  it('keep any text', () => {
    const q = 'select "a" + 1 & 2 -- é?#'
    expect(parseSearch(stringifySearch({ q }))).toEqual({ q })
  })
})
