import { describe, expect, it } from 'vitest'
import type { SweptKnob } from '../../lib/screens'
import { configText, parseSettings, positionOf, settingsText, valueAt, withSetting } from './knobs'

const knob = (name: string, stock: number): SweptKnob => ({ name, words: name, unit: '', stock, points: [], elasticity: 0, next: null, sentence: '' })

describe('knobs', () => {
  it('have stock in the middle and a quarter and four times it at the ends', () => {
    expect([0.25, 1, 4].map((factor) => positionOf(100 * factor, 100))).toEqual([0, 0.5, 1])
    expect(positionOf(10_000, 100)).toBe(1)
    expect(valueAt(1, knob('dram_gbps', 3350))).toBe(13_400)
    expect(valueAt(0.5, knob('dram_gbps', 3352))).toBe(3352)
  })
  it('go there and back', () => {
    for (const position of [0, 0.13, 0.37, 0.62, 0.9, 1]) {
      expect(positionOf(valueAt(position, knob('l2_mb', 50)), 50)).toBeCloseTo(position, 2)
    }
  })
  it('count SMs in whole ones', () => {
    expect(Number.isInteger(valueAt(0.61, knob('sm', 132)))).toBe(true)
  })
  it('are said in the address and on the command line', () => {
    expect(parseSettings('dram_gbps:6000,sm:160,bad,l2_mb:,tdp_w:-3')).toEqual({ dram_gbps: 6000, sm: 160 })
    expect(settingsText({ dram_gbps: 6000, sm: 160 })).toBe('dram_gbps:6000,sm:160')
    expect(settingsText({})).toBeUndefined()
    expect(configText('h100_sxm', { dram_gbps: 6000 })).toBe('h100_sxm:dram_gbps=6000')
    expect(configText('h100_sxm:sm=160,dram_gbps=5000', { dram_gbps: 6000 })).toBe('h100_sxm:sm=160,dram_gbps=6000')
    expect(configText('l4', {})).toBe('l4')
  })
  it('at stock are not said at all', () => {
    expect(withSetting({ sm: 160 }, knob('sm', 132), 132)).toEqual({})
    expect(withSetting({}, knob('sm', 132), 160)).toEqual({ sm: 160 })
  })
})
