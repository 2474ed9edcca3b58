import type { SweptKnob } from '../../lib/screens'

/** A slider runs from a quarter of stock to four times it; equal ways are equal ratios. */
export const SPAN = 4

/** Where a value stands on its slider, from 0 to 1; stock is the middle. */
export function positionOf(value: number, stock: number): number {
  const at = (Math.log(value / stock) / Math.log(SPAN) + 1) / 2
  return Math.min(1, Math.max(0, at))
}

/** The other way; a whole number where the knob counts things, near stock exactly stock. */
export function valueAt(position: number, knob: Pick<SweptKnob, 'name' | 'stock'>): number {
  const value = knob.stock * SPAN ** (2 * position - 1)
  if (Math.abs(value / knob.stock - 1) < 0.012) return knob.stock
  return knob.name === 'sm' ? Math.max(1, Math.round(value)) : Number(value.toPrecision(3))
}

/** What differs from stock, by override name. */
export type Settings = Readonly<Record<string, number>>

/** `dram_gbps:6000,sm:160`, as the address has it; what is no number is left out. */
export function parseSettings(text: string | undefined): Settings {
  const found = (text ?? '').split(',').flatMap((part) => {
    const [name, value] = part.split(':')
    const number = Number(value)
    return name && value !== undefined && value !== '' && Number.isFinite(number) && number > 0 ? [[name, number] as const] : []
  })
  return Object.fromEntries(found)
}

export const settingsText = (settings: Settings): string | undefined => {
  const said = Object.entries(settings)
    .map(([name, value]) => `${name}:${value}`)
    .join(',')
  return said === '' ? undefined : said
}

/** `h100_sxm:dram_gbps=6000,sm=160`: the GPU by its id, its own overrides kept where the sliders say nothing of them. */
export function configText(label: string, settings: Settings): string {
  const [gpu = label, own = ''] = label.split(':')
  const before = Object.fromEntries(own.split(',').filter(Boolean).map((part) => part.split('=') as [string, string]))
  const all = { ...before, ...Object.fromEntries(Object.entries(settings).map(([name, value]) => [name, String(value)])) }
  const said = Object.entries(all)
    .map(([name, value]) => `${name}=${value}`)
    .join(',')
  return said === '' ? gpu : `${gpu}:${said}`
}

/** Without what equals stock. */
export function withSetting(settings: Settings, knob: Pick<SweptKnob, 'name' | 'stock'>, value: number): Settings {
  const rest = Object.fromEntries(Object.entries(settings).filter(([name]) => name !== knob.name))
  return Math.abs(value - knob.stock) <= knob.stock * 1e-9 ? rest : { ...rest, [knob.name]: value }
}

export const BOUND_ORDER = ['tensor', 'dram', 'l2', 'issue', 'launch', 'link'] as const
