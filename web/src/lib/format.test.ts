import { describe, expect, it } from 'vitest'
import { bytes, counted, digits, padding, percent, range, rate, signedPercent, time, timeUnit, timeWithUnit } from './format'
import { classOf, letter, shortName } from './gpus'
import type { GpuSpec } from '../schema/events'
import { ms, ratio } from './units'

const thin = '\u2009'

describe('numbers for people', () => {
  it.each([
    [0, '0'],
    [1, '1.00'],
    [12.345, '12.3'],
    [9.996, '10.0'],
    [99.96, '100'],
    [0.01234, '0.0123'],
    [1240, `1${thin}240`],
    [1234567, `1${thin}234${thin}567`],
    [-3.5, '\u22123.50'],
    [Number.NaN, '–'],
    [Number.POSITIVE_INFINITY, '–'],
  ])('%s reads %s', (value, text) => expect(digits(value)).toBe(text))

  it.each([
    ['1.23', '0'],
    ['12.3', '00'],
    ['123', '.000'],
    ['0.123', ''],
  ])('%s is followed by %j unseen', (text, unseen) => expect(padding(text)).toBe(unseen))

  it.each([
    [0.05, `+5.0${thin}%`],
    [-0.123, `\u221212${thin}%`],
    [0, `±0.0${thin}%`],
    [-0.0001, `±0.0${thin}%`],
  ])('%s as a signed ratio reads %s', (value, text) => expect(signedPercent(ratio(value))).toBe(text))

  it.each([
    [1, `100${thin}%`],
    [0.034, `3.4${thin}%`],
    [0, `0${thin}%`],
  ])('%s as a ratio reads %s', (value, text) => expect(percent(ratio(value))).toBe(text))
})

describe('times', () => {
  it.each([
    [0.0000005, '0.500 ns'],
    [0.0125, '12.5 µs'],
    [9.81, '9.81 ms'],
    [12_500, '12.5 s'],
  ])('%s ms reads %s', (value, text) => expect(timeWithUnit(ms(value))).toBe(text))

  it('has one unit per column, that of the median', () => {
    expect(timeUnit([ms(0.5), ms(2), ms(4000)])).toBe('ms')
    expect(timeUnit([])).toBe('ms')
    expect(time(ms(4000), 'ms')).toBe(`4${thin}000`)
    expect(range(ms(8.9), ms(10.9), 'ms')).toBe('8.90–10.9')
  })
})

describe('sizes and rates', () => {
  it.each([
    [0, '0 B'],
    [1536, '1.50 KiB'],
    [80 * 2 ** 30, '80.0 GiB'],
  ])('%s bytes read %s', (value, text) => expect(bytes(value)).toBe(text))

  it('are decimal', () => {
    expect(rate(3.35e12, 'B')).toBe('3.35 TB/s')
    expect(rate(989e12, 'FLOP')).toBe('989 TFLOP/s')
  })

  it('count words', () => {
    expect(counted(1, 'step')).toBe('1 step')
    expect(counted(1450, 'kernel')).toBe(`1${thin}450 kernels`)
  })
})

describe('GPUs', () => {
  const spec = (vendor: GpuSpec['vendor'], architecture: string, name: string) => ({ vendor, architecture, name }) as GpuSpec

  it('have a class by their architecture', () => {
    expect(classOf(spec('nvidia', 'Hopper', ''))).toBe('hopper')
    expect(classOf(spec('nvidia', 'Ada Lovelace', ''))).toBe('ada')
    expect(classOf(spec('amd', 'CDNA 3', ''))).toBe('amd')
    expect(classOf(spec('nvidia', 'Rubin', ''))).toBe('other')
  })

  it('are told apart by letters', () => {
    expect([0, 1, 25, 26, 27].map(letter)).toEqual(['A', 'B', 'Z', 'AA', 'AB'])
    expect(shortName(spec('amd', '', 'AMD Instinct MI300X'))).toBe('MI300X')
  })
})
