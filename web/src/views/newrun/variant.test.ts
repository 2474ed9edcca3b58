import { describe, expect, it } from 'vitest'
import { commandLine, partsOf, refinersOf, simulatorChoices, withReplicas } from './variant'

describe('configs as text', () => {
  it('are taken apart and put together', () => {
    expect(partsOf('h100_sxm:dram_gbps=6000,sm=160*2')).toEqual({ gpu: 'h100_sxm', overrides: 'dram_gbps=6000,sm=160', replicas: 2 })
    expect(partsOf(' l4 ')).toEqual({ gpu: 'l4', overrides: '', replicas: 1 })
    expect(partsOf('l4*x').replicas).toBe(1)
    expect(withReplicas('l4*3', 2)).toBe('l4*2')
    expect(withReplicas('l4*3', 1)).toBe('l4')
  })
  it('are said as a shell takes them', () => {
    expect(commandLine('abc', ['h100_sxm:dram_gbps=6000', 'l4*2'], 'analytic')).toBe(".venv/bin/cascade run abc --gpu h100_sxm:dram_gbps=6000 --gpu 'l4*2'")
    expect(commandLine('abc', ['l4'], 'roofline')).toMatch(/--simulator roofline$/)
  })
  it('have a simulator, or the reason why not', () => {
    const choices = simulatorChoices(['analytic', 'roofline'], 0)
    expect(choices.filter(({ why }) => why === '').map(({ name }) => name)).toEqual(['analytic', 'roofline'])
    expect(choices.find(({ name }) => name === 'sass')?.why).toMatch(/instructions/)
    const sass = (tasks: number | null) => simulatorChoices(['analytic', 'sass'], tasks).find(({ name }) => name === 'sass')?.why
    expect(sass(0)).toMatch(/no SASS in this trace/)
    expect([sass(3), sass(null)]).toEqual(['', ''])
  })
  it('are refined by simulators of instructions alone, where the trace has some', () => {
    expect(refinersOf(['analytic', 'roofline', 'sass', 'accelsim'], 'analytic', 4)).toEqual(['sass', 'accelsim'])
    expect(refinersOf(['analytic', 'sass'], 'analytic', 0)).toEqual([])
    expect(refinersOf(['analytic', 'sass'], 'sass', 4)).toEqual([])
    expect(commandLine('abc', ['l4'], 'analytic', 'sass')).toMatch(/--gpu l4 --refine-with sass$/)
  })
})
