import type { LogMs, Ms, Ratio } from './units'

export const MISSING = '–'
const THIN_SPACE = '\u2009'
const MINUS = '\u2212'

/** Three significant digits, thousands apart: 1 240, 12.4, 0.0124. */
export function digits(value: number): string {
  if (!Number.isFinite(value)) return MISSING
  if (value === 0) return '0'
  const size = Math.abs(value)
  const places = Math.max(0, 2 - Math.floor(Math.log10(size)))
  const rounded = Number(size.toFixed(Math.min(places, 12)))
  // 9.996 rounds to 10.0, which has one place less.
  const placesNow = Math.max(0, Math.min(12, 2 - Math.floor(Math.log10(rounded || size))))
  const [whole = '0', part] = rounded.toFixed(placesNow).split('.')
  const spaced = whole.replace(/\B(?=(\d{3})+$)/g, THIN_SPACE)
  return (value < 0 ? MINUS : '') + spaced + (part === undefined ? '' : `.${part}`)
}

export type TimeUnit = 'ns' | 'µs' | 'ms' | 's'
const PER_MS: Readonly<Record<TimeUnit, number>> = { ns: 1e6, µs: 1e3, ms: 1, s: 1e-3 }

/** One unit for a whole column, so that its numbers compare at a glance: that of the median. */
export function timeUnit(values: readonly Ms[]): TimeUnit {
  const sorted = values.filter((value) => value > 0).sort((a, b) => a - b)
  const median = sorted[Math.floor(sorted.length / 2)] ?? 1
  return median >= 1000 ? 's' : median >= 0.1 ? 'ms' : median >= 0.0001 ? 'µs' : 'ns'
}

export function time(value: Ms, unit: TimeUnit): string {
  return digits(value * PER_MS[unit])
}

export function timeWithUnit(value: Ms): string {
  const unit = timeUnit([value])
  return `${time(value, unit)} ${unit}`
}

/** What must follow a number, unseen, for the points of a column to stand under each other: .123, 1.23, 12.3, 123 */
export function padding(text: string): string {
  const [, part] = text.split('.')
  return part === undefined ? '.000' : '0'.repeat(Math.max(0, 3 - part.length))
}

/** 9.8 between 8.9 and 10.9 reads 8.9–10.9. */
export function range(p10: Ms, p90: Ms, unit: TimeUnit): string {
  return `${time(p10, unit)}–${time(p90, unit)}`
}

/** The sign is always there, with a real minus; one decimal below ten per cent. */
export function signedPercent(value: Ratio): string {
  const percent = value * 100
  const size = Math.abs(percent)
  const text = size >= 9.95 ? size.toFixed(0) : size.toFixed(1)
  return `${Number(text) === 0 ? '±' : percent < 0 ? MINUS : '+'}${text}${THIN_SPACE}%`
}

export function percent(value: Ratio): string {
  const size = value * 100
  return `${size > 0 && size < 9.95 ? size.toFixed(1) : size.toFixed(0)}${THIN_SPACE}%`
}

export function count(value: number): string {
  const [whole = '0', part] = String(Math.abs(value)).split('.')
  const spaced = whole.replace(/\B(?=(\d{3})+$)/g, THIN_SPACE)
  return (value < 0 ? MINUS : '') + spaced + (part === undefined ? '' : `.${part}`)
}

/** 1 word, 2 words. */
export function counted(value: number, word: string, words = `${word}s`): string {
  return `${count(value)} ${value === 1 ? word : words}`
}

export function bytes(value: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  const step = Math.min(units.length - 1, value > 0 ? Math.floor(Math.log2(value) / 10) : 0)
  return `${digits(value / 1024 ** step)} ${units[step] ?? 'B'}`
}

/** Rates are decimal: 3.35 TB/s, 989 TFLOP/s. */
export function rate(perSecond: number, unit: string): string {
  const prefixes = ['', 'k', 'M', 'G', 'T', 'P', 'E']
  const step = Math.min(prefixes.length - 1, perSecond > 0 ? Math.floor(Math.log10(perSecond) / 3) : 0)
  return `${digits(perSecond / 1000 ** step)} ${prefixes[step] ?? ''}${unit}/s`
}

// Made once: a page that scrubs writes the time sixty times a second.
const CLOCK = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false })

export const clock = (at: LogMs): string => CLOCK.format(at)

export function dateAndClock(at: LogMs, now: LogMs): string {
  const date = new Date(at)
  if (date.toDateString() === new Date(now).toDateString()) return clock(at)
  return `${date.toLocaleDateString('en-CA')} ${date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' })}`
}
