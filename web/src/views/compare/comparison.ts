import { ask, type ApiEstimate } from '../../lib/api'

/** Two to eight configs of one run or several, side by side, as the server sets them. Times in ns. */
export interface Comparisons {
  /** Index of the version that the others are compared with. */
  readonly base: number
  /** launch: the same trace; signature or task: two traces whose kernels were matched. */
  readonly matched_by: string
  readonly is_comparable: boolean
  readonly differs: readonly Difference[]
  readonly metric: string
  readonly versions: readonly ComparedVersion[]
  readonly comparisons: readonly Comparison[]
  readonly kernels: readonly ComparedKernel[]
}

export interface Difference {
  readonly field: string
  readonly values: readonly (string | null)[]
}

export interface ComparedVersion {
  readonly v: string
  readonly run_id: string
  readonly config_id: string
  readonly label: string
  readonly gpu: string
  readonly gpu_name: string
  readonly trace_id: string
  readonly trace_name: string | null
  readonly model_name: string | null
  readonly simulator: string
  readonly provenance: string | null
  readonly infeasible: string | null
  readonly status: string
  readonly coverage_ppm: number | null
}

export interface Comparison {
  readonly v: string
  /** Index among the versions. */
  readonly place: number
  readonly start_ns: number | null
  readonly end_ns: number | null
  readonly delta_ns: number | null
  readonly ratio: ApiEstimate | null
  readonly waterfall: readonly { readonly label: string; readonly delta_ns: number }[]
  readonly verdict: string
  readonly sentence: string
}

export interface ComparedCell {
  readonly count: number
  readonly total_ns: number | null
  readonly duration_ns: number | null
  readonly bound: string
  readonly delta_ns: number | null
  readonly ratio: ApiEstimate | null
}

export interface ComparedKernel {
  readonly key: string
  readonly name: string | null
  readonly op: string | null
  /** What tells kernels of one name apart; '' where those of one name are taken together. */
  readonly shape: string
  readonly family: string
  readonly versions: readonly (ComparedCell | null)[]
}

export function compare(versions: readonly string[], base: string | undefined): Promise<Comparisons> {
  const asked = new URLSearchParams([...versions.map((v) => ['v', v]), ...(base === undefined ? [] : [['base', base]])])
  return ask<Comparisons>(`/api/compare?${asked}`)
}

/** A bar of a waterfall: from where to where, in ns. */
export interface WaterfallBar {
  readonly label: string
  readonly from: number
  readonly to: number
  readonly kind: 'start' | 'change' | 'end'
}

/** The most of the change first; what is small together at the end. The bars lead exactly from start to end. */
export function waterfallBars(comparison: Comparison, changes = 8): readonly WaterfallBar[] {
  const { start_ns: start, end_ns: end, waterfall } = comparison
  if (start === null || end === null) return []
  const sorted = [...waterfall].filter(({ delta_ns: delta }) => delta !== 0).sort((a, b) => Math.abs(b.delta_ns) - Math.abs(a.delta_ns))
  const shown = sorted.slice(0, changes)
  const rest = sorted.slice(changes).reduce((sum, { delta_ns: delta }) => sum + delta, 0)
  const bars: WaterfallBar[] = [{ label: 'base', from: 0, to: start, kind: 'start' }]
  let at = start
  for (const { label, delta_ns: delta } of [...shown, ...(sorted.length > changes ? [{ label: 'others', delta_ns: rest }] : [])]) {
    bars.push({ label, from: at, to: at + delta, kind: 'change' })
    at += delta
  }
  return [...bars, { label: 'this', from: 0, to: end, kind: 'end' }]
}

/** What the bars miss of the whole difference; 0 where they add up. */
export function missing(bars: readonly WaterfallBar[]): number {
  const [last, end] = [bars.at(-2), bars.at(-1)]
  return last === undefined || end === undefined ? 0 : end.to - last.to
}

/** The kernels that only some versions have, by the version that has them. */
export function onlyIn(kernels: readonly ComparedKernel[], place: number): readonly ComparedKernel[] {
  return kernels.filter(({ versions }) => versions[place] != null && versions.some((cell) => cell === null))
}

/** Whether the versions differ in a kernel by more than the doubt about it. */
export function isDifferent(kernel: ComparedKernel, base: number): boolean {
  return kernel.versions.some((cell, place) => place !== base && (cell === null || (cell.ratio !== null && (cell.ratio.p10 > 1 || cell.ratio.p90 < 1))))
}
