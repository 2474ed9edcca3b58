import { count, digits } from '../../lib/format'
import type { GpuSpec } from '../../schema/events'

/** What a slider of the dialog turns, in the units that overrides are written in. */
export interface VariantKnob {
  readonly name: string
  readonly words: string
  readonly unit: string
  readonly stock: (spec: GpuSpec) => number
}

export const VARIANT_KNOBS: readonly VariantKnob[] = [
  { name: 'sm', words: 'SMs', unit: '', stock: (spec) => spec.sm_count },
  { name: 'clock_ghz', words: 'Clock', unit: 'GHz', stock: (spec) => spec.boost_hz / 1e9 },
  { name: 'tensor_tflops', words: 'Tensor rate, bf16', unit: 'TFLOP/s', stock: (spec) => spec.bf16_flop_per_s / 1e12 },
  { name: 'dram_gbps', words: 'DRAM', unit: 'GB/s', stock: (spec) => spec.dram_bytes_per_s / 1e9 },
  { name: 'dram_gib', words: 'DRAM size', unit: 'GiB', stock: (spec) => spec.dram_bytes / 2 ** 30 },
  { name: 'l2_mb', words: 'L2', unit: 'MiB', stock: (spec) => spec.l2_bytes / 2 ** 20 },
  { name: 'link_gbps', words: 'Link', unit: 'GB/s', stock: (spec) => spec.link_bytes_per_s / 1e9 },
]

export const shownStock = (value: number): string => (Number.isInteger(value) ? count(value) : digits(value))

/** `h100_sxm:dram_gbps=6000*2` taken apart; replicas are 1 where none are written. */
export function partsOf(text: string): { readonly gpu: string; readonly overrides: string; readonly replicas: number } {
  const [body = '', copies] = text.trim().split('*')
  const [gpu = '', overrides = ''] = body.split(':')
  const replicas = Number(copies)
  return { gpu: gpu.trim(), overrides: overrides.trim(), replicas: copies !== undefined && Number.isInteger(replicas) && replicas > 0 ? replicas : 1 }
}

export const withReplicas = (text: string, replicas: number): string => {
  const body = text.split('*')[0]?.trim() ?? ''
  return replicas > 1 ? `${body}*${replicas}` : body
}

/** A word as a shell takes it. */
export const shellWord = (text: string): string => (/^[\w:=.,+-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`)

export function commandLine(trace: string, configs: readonly string[], simulator: string, refineWith = ''): string {
  const by = simulator === 'analytic' ? [] : [`--simulator ${simulator}`]
  const then = refineWith === '' ? [] : [`--refine-with ${refineWith}`]
  return ['.venv/bin/cascade run', trace, ...configs.map((config) => `--gpu ${shellWord(config)}`), ...by, ...then].join(' ')
}

const NOT_HERE: Readonly<Record<string, string>> = {
  sass: 'needs the instructions of each kernel, which no profiler records: `cascade sass FOLDER` simulates Accel-Sim’s own traces',
  accelsim: 'needs an Accel-Sim of yours: start the server with CASCADE_ACCELSIM and CASCADE_ACCELSIM_CONFIGS',
}

/** Simulators of instructions: what a run may be refined with. */
const SLOW: ReadonlySet<string> = new Set(['sass', 'accelsim'])

/** What may refine a run of this simulator; none where the trace has no instructions at all. */
export const refinersOf = (installed: readonly string[], simulator: string, sassTasks: number | null): readonly string[] =>
  SLOW.has(simulator) ? [] : simulatorChoices(installed, sassTasks).flatMap(({ name, why }) => (SLOW.has(name) && why === '' ? [name] : []))

/** Every simulator there is, with the reason where it is not possible here. sassTasks: of the trace; null: not known. */
export function simulatorChoices(installed: readonly string[], sassTasks: number | null): readonly { readonly name: string; readonly why: string }[] {
  return [...new Set([...installed, ...Object.keys(NOT_HERE)])].map((name) => {
    if (!installed.includes(name)) return { name, why: NOT_HERE[name] ?? 'not installed' }
    return { name, why: SLOW.has(name) && sassTasks === 0 ? 'no SASS in this trace: import it together with a folder of Accel-Sim’s traces' : '' }
  })
}
