import type { GpuSpec } from '../schema/events'

/** Named for people; what tells configs apart is their letter, never this colour. */
export type GpuClass = 'volta' | 'turing' | 'ampere' | 'ada' | 'hopper' | 'blackwell' | 'amd' | 'other'

export const CLASS_WORD: Readonly<Record<GpuClass, string>> = {
  blackwell: 'Blackwell',
  hopper: 'Hopper',
  ada: 'Ada',
  ampere: 'Ampere',
  turing: 'Turing',
  volta: 'Volta',
  amd: 'AMD',
  other: 'other',
}

const CLASSES: readonly GpuClass[] = ['volta', 'turing', 'ampere', 'ada', 'hopper', 'blackwell']

export function classOf(spec: GpuSpec): GpuClass {
  if (spec.vendor === 'amd') return 'amd'
  const architecture = spec.architecture.toLowerCase()
  return CLASSES.find((name) => architecture.includes(name)) ?? 'other'
}

/** A, B … Z, AA, AB …: a config's identity on screen. */
export function letter(index: number): string {
  const rest = Math.floor(index / 26)
  return (rest > 0 ? letter(rest - 1) : '') + String.fromCharCode(65 + (index % 26))
}

/** Without the maker's name, which a whole column would repeat. */
export function shortName(spec: GpuSpec): string {
  return spec.name.replace(/^(NVIDIA|AMD)\s+(Instinct\s+)?/i, '')
}

export const isHypothetical = (label: string): boolean => label.includes(':')
