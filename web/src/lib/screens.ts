import { ask, Refusal, type ListedRun } from './api'

/** What charts, drawers and tables ask of the server beside what every page asks. */

export interface ReceiptInput {
  readonly name: string
  readonly value: number | string
  readonly unit: string
  readonly source: string
}

export interface ReceiptLine {
  readonly kind: 'input' | 'work' | 'limit' | 'add' | 'multiply' | 'subtotal' | 'result' | 'interval'
  readonly label: string
  readonly formula: string
  readonly inputs: readonly ReceiptInput[]
  readonly value_ns: number | null
  readonly factor: number | null
  readonly source: string
  readonly is_largest: boolean
}

export interface Receipt {
  readonly gpu: string
  readonly gpu_name: string
  readonly name: string
  readonly family: string
  readonly bound: string
  readonly tier: string
  readonly reason: string
  readonly launch_count: number | null
  readonly value_ns: number | null
  readonly p10_ns: number | null
  readonly p90_ns: number | null
  readonly roofline_ns: number | null
  readonly measured_ns: number | null
  readonly error_ppm: number | null
  readonly simulator: string
  readonly simulator_version: string | null
  readonly calibration_digest: string | null
  readonly config_id: string
  readonly is_reproduced: boolean
  readonly lines: readonly ReceiptLine[]
}

/** What one simulator says of one kernel on one GPU: the forward prediction. */
export interface SimulatedBy {
  readonly run_id: string
  readonly simulator: string
  readonly simulator_version: string | null
  /** The run's answer rests on it. */
  readonly stands: boolean
  readonly duration_ns: number | null
  readonly p10_ns: number | null
  readonly p90_ns: number | null
  readonly bound: string
  readonly tier: string
  readonly reason: string
  readonly tensor_ns: number | null
  readonly dram_ns: number | null
  readonly l2_ns: number | null
  readonly issue_ns: number | null
  readonly launch_ns: number | null
  readonly sm_cycles: number | null
  readonly statistics: Readonly<Record<string, number | string | Readonly<Record<string, number>>>> | null
}

export interface Simulations {
  readonly measured_ns: number | null
  readonly refinement: string | null
  /** Why this one stands; '' where only one was asked in this run. */
  readonly why: string
  readonly simulations: readonly SimulatedBy[]
}

/** Measured times of one kernel's launches. */
export interface Histogram {
  readonly launch_count: number
  readonly measured_count: number
  readonly median_ns: number | null
  readonly bins: readonly { readonly low_ns: number; readonly high_ns: number; readonly count: number }[]
}

/** What measurements say of GPUs like a config's. */
export interface KnownError {
  readonly config_id: string
  readonly nearest: string | null
  readonly kin: 'same' | 'same_die' | 'same_capability' | 'same_class' | 'other_class' | null
  readonly mean_ape: number | null
  readonly row_count: number
  readonly nominal_coverage: number
  readonly coverage: number | null
  readonly coverage_row_count: number
}

export interface CurvePoint {
  readonly value_ms: number
  readonly p10_ms: number
  readonly p90_ms: number
  readonly is_extrapolated: boolean
  readonly infeasible: string | null
}

export interface Curves {
  readonly axis: 'context' | 'batch'
  readonly x: readonly number[]
  readonly traced: { readonly low: number; readonly high: number }
  readonly step: number
  readonly requests: number
  readonly context_tokens: number
  readonly configs: readonly { readonly gpu: string; readonly config_id: string; readonly points: readonly CurvePoint[] }[]
}

export interface SweepAnswer {
  readonly value_ms: number
  readonly p10_ms: number
  readonly p90_ms: number
  readonly kernel_time_ms: number
  readonly bound_by: Readonly<Record<string, number>>
}

export interface SweptKnob {
  readonly name: string
  readonly words: string
  readonly unit: string
  readonly stock: number
  readonly points: readonly (SweepAnswer & { readonly factor: number; readonly value: number })[]
  readonly elasticity: number | null
  readonly next: { readonly value: number; readonly family: string; readonly bound: string; readonly was: string } | null
  readonly sentence: string
}

export interface Sweep {
  readonly gpu: string
  readonly metric: 'tpot' | 'ttft' | 'kernel_time'
  readonly base: SweepAnswer
  readonly knobs: readonly SweptKnob[]
}

export interface ApiEstimate {
  readonly value: number
  readonly p10: number
  readonly p90: number
}

export interface WhatIfAnswer {
  readonly gpu: string
  readonly infeasible: string | null
  readonly kernel_time_ms?: number | null
  readonly kernel_time_interval_ms?: { readonly p10: number; readonly p90: number } | null
  readonly ttft_ms?: ApiEstimate | null
  readonly tpot_ms?: ApiEstimate | null
  readonly bound_by: Readonly<Record<string, number>>
}

export interface SqlSchema {
  readonly tables: readonly {
    readonly name: string
    readonly about: string | null
    readonly columns: readonly { readonly name: string; readonly type: string; readonly about: string | null }[]
  }[]
}

export interface ErrorMap {
  readonly about: string
  readonly sections: readonly {
    readonly title: string
    /** After its tables. */
    readonly text: string
    readonly tables: readonly {
      readonly text: string
      readonly columns: readonly string[]
      readonly rows: readonly (readonly (string | number | null)[])[]
      /** [row, column] of what misses its aim. */
      readonly missed: readonly (readonly [number, number])[]
    }[]
  }[]
}

export interface TraceDetails {
  readonly trace_id: string
  readonly name: string | null
  readonly status: string
  readonly provenance: string | null
  readonly tool: string | null
  readonly source_gpu: string | null
  readonly model: string | null
  readonly engine: string | null
  readonly engine_version: string | null
  readonly ranks: number | null
  readonly world_size: number | null
  readonly is_truncated: boolean | null
  readonly reason: string | null
  readonly kernels: number | null
  readonly signatures: number | null
  readonly tasks: number | null
  readonly launches: number | null
  readonly launchless_kernels: number | null
  /** Kernel tasks that come with their instructions. */
  readonly sass_tasks: number | null
  readonly steps: readonly {
    readonly step: number
    readonly phase: string
    readonly context_requests: number
    readonly context_tokens: number
    readonly generation_requests: number
    readonly generation_tokens: number
    readonly kernels: number
  }[]
  readonly quality: Readonly<Record<string, unknown>> | null
}

export interface RunsPage {
  readonly runs: readonly ListedRun[]
  readonly total: number
  /** Of those that the filters let through. */
  readonly statuses: Readonly<Record<string, number>>
}

const part = encodeURIComponent

export const screens = {
  runs: (filters: { readonly q: string; readonly status: string; readonly provenance: string }, count: number) =>
    ask<RunsPage>(`/api/runs?${new URLSearchParams({ ...filters, count: String(count) }).toString()}`),
  explain: (run: string, config: string, task: string) =>
    ask<Receipt>(`/api/runs/${part(run)}/configs/${part(config)}/tasks/${part(task)}/explain`),
  simulations: (run: string, config: string, task: string) =>
    ask<Simulations>(`/api/runs/${part(run)}/configs/${part(config)}/tasks/${part(task)}/simulations`),
  histogram: (trace: string, task: string) => ask<Histogram>(`/api/traces/${part(trace)}/tasks/${part(task)}/histogram`),
  knownErrors: async (run: string) => (await ask<{ readonly configs: readonly KnownError[] }>(`/api/runs/${part(run)}/known-errors`)).configs,
  curves: (run: string, axis: 'context' | 'batch') => ask<Curves>(`/api/runs/${part(run)}/curves?axis=${axis}`),
  sweep: (trace: string, config: string) => ask<Sweep>('/api/what-if/sweep', { trace, config }),
  whatIf: (trace: string, config: string) => ask<WhatIfAnswer>('/api/what-if', { trace, config, steps: false }),
  sqlSchema: () => ask<SqlSchema>('/api/sql/schema'),
  errorMap: () => ask<ErrorMap>('/api/accuracy'),
  trace: (id: string) => ask<TraceDetails>(`/api/traces/${part(id)}`),
}

/** A statement that was refused: the sentence, the rule, and where in the text. */
export class SqlRefusal extends Refusal {
  constructor(
    sentence: string,
    status: number,
    readonly rule: string,
    readonly position: number | null,
  ) {
    super(sentence, status)
  }
}

interface Said {
  readonly error: string
  readonly rule?: string
  readonly position?: number | null
}

async function posted(path: string, body: object): Promise<Response> {
  let response: Response
  try {
    response = await fetch(path, {
      method: 'POST',
      body: JSON.stringify(body),
      headers: { 'content-type': 'application/json' },
      credentials: 'same-origin',
    })
  } catch {
    throw new Refusal('The server does not answer. Is `cascade serve` still running?', 0)
  }
  if (response.ok) return response
  const said = (await response.json().catch(() => ({ error: `The server answered ${response.status}.` }))) as Said
  throw new SqlRefusal(said.error, response.status, said.rule ?? '', said.position ?? null)
}

/** The rows of one SELECT as an Arrow stream's bytes. */
export async function sqlTable(sql: string): Promise<{ readonly bytes: Uint8Array; readonly isTruncated: boolean }> {
  const response = await posted('/api/sql/table', { sql, limit: 1_000_000 })
  return {
    bytes: new Uint8Array(await response.arrayBuffer()),
    isTruncated: response.headers.get('x-cascade-truncated') === '1',
  }
}

/** Hands the rows to the browser as a file. */
export async function sqlExport(sql: string, format: 'csv' | 'parquet'): Promise<void> {
  const file = await (await posted('/api/sql/export', { sql, format })).blob()
  const link = document.createElement('a')
  link.href = URL.createObjectURL(file)
  link.download = `cascade.${format}`
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}

async function arrowBytes(path: string): Promise<Uint8Array> {
  const response = await fetch(path, { credentials: 'same-origin' })
  if (!response.ok) throw new Refusal(((await response.json()) as Said).error, response.status)
  return new Uint8Array(await response.arrayBuffer())
}

export const profileBytes = (trace: string): Promise<Uint8Array> => arrowBytes(`/api/traces/${part(trace)}/profile`)
export const workBytes = (trace: string): Promise<Uint8Array> => arrowBytes(`/api/traces/${part(trace)}/work`)
