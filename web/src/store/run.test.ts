import { describe, expect, it } from 'vitest'
import type { FeedEvent, Rows } from '../feed/events'
import type { FeedRecord } from '../feed/frames'
import type { Estimate } from '../lib/units'
import type { RunConfig } from '../schema/events'
import { GOLDEN, goldenRecords, goldenReport, type ReportedConfig } from './golden'
import { Recording } from './recording'
import {
  applyAll,
  applyEvent,
  emptyRun,
  FOLDED_TYPES,
  infeasible,
  metricOf,
  progress,
  reasonFor, shareDone,
  requestedConfigs,
  type Config,
  type Run,
} from './run'

function recorded(name: string, records: readonly FeedRecord[] = goldenRecords(name)): Recording {
  const recording = new Recording(goldenReport(name).run_id)
  recording.append(records)
  return recording
}

function expectEstimate(found: Estimate | null, said: { value: number; p10: number; p90: number } | null) {
  if (said === null) {
    expect(found).toBeNull()
    return
  }
  expect(found?.value).toBeCloseTo(said.value, 5)
  expect(found?.p10).toBeCloseTo(said.p10, 5)
  expect(found?.p90).toBeCloseTo(said.p90, 5)
}

function expectConfig(config: Config, said: ReportedConfig) {
  expect(config.spec.label).toBe(said.gpu)
  expectEstimate(metricOf(config, 'kernel'), { value: said.kernel_time_ms, ...said.kernel_time_interval_ms })
  expectEstimate(metricOf(config, 'prefill'), said.prefill_step_ms)
  expectEstimate(metricOf(config, 'decode'), said.decode_step_ms)
  expectEstimate(metricOf(config, 'ttft'), said.ttft_ms)
  expectEstimate(metricOf(config, 'tpot'), said.tpot_ms)
  expect(config.accuracy?.coverage).toBeCloseTo(said.coverage, 6)
  expect(config.accuracy?.weighted ?? null).toBe(said.error?.weighted_error ?? null)
  expect(config.accuracy?.total ?? null).toBe(said.error?.total_error ?? null)
  expect(config.assumptions).toEqual(said.assumptions)
}

describe.each(GOLDEN)('the recorded run %s', (name) => {
  const report = goldenReport(name)

  it('folds into what the server says of it', () => {
    const run = recorded(name).head
    expect(run.status).toBe(report.status)
    expect(run.stateHash).toBe(report.state_hash)
    expect(run.trace.name).toBe(report.trace.name)
    expect(run.trace.provenance).toBe(report.trace.provenance)
    expect(run.trace.sourceGpu).toBe(report.trace.source_gpu)
    const configs = requestedConfigs(run)
    expect(configs).toHaveLength(report.configs.length)
    report.configs.forEach((said, index) => {
      const config = configs[index]
      if (config === undefined) throw new Error('a config is missing')
      expectConfig(config, said)
    })
    const source = run.configs.find((config) => !config.spec.is_requested)
    expect(source === undefined).toBe(report.source === null)
    if (source !== undefined && report.source !== null) expectConfig(source, report.source)
  })

  it('needs only the types it asks for', () => {
    const asked = new Set<string>(FOLDED_TYPES)
    const lean = recorded(
      name,
      goldenRecords(name).filter((record) => asked.has(record.type)),
    )
    expect(lean.head).toEqual(recorded(name).head)
  })

  it('is the same when every record comes twice, and in whatever frames', () => {
    const records = goldenRecords(name)
    const recording = new Recording(report.run_id)
    for (let at = 0; at < records.length; at += 7) {
      recording.append(records.slice(at, at + 7))
      recording.append(records.slice(at, at + 7))
    }
    expect(recording.head).toEqual(recorded(name).head)
    expect(applyAll(recording.head, records.map((record) => record.event)).configs).toEqual(recording.head.configs)
  })

  it('is known as it was at every moment, and whole at the end', () => {
    const recording = recorded(name)
    const count = recording.records.length
    let run = emptyRun(report.run_id)
    recording.records.forEach((record, index) => {
      if (index % 5 === 0) expect(recording.at(record.position)).toEqual(run)
      run = applyEvent(run, record.event)
    })
    expect(recording.at(count)).toEqual(recording.head)
    expect(run).toEqual(recording.head)
  })
})

// --- small runs -----------------------------------------------------------------------------------------------------

const CONFIG: RunConfig = {
  config_id: 'c1',
  label: 'l4',
  replicas: 1,
  is_requested: true,
  gpu: goldenConfigGpu(),
}

function goldenConfigGpu(): RunConfig['gpu'] {
  for (const { event } of goldenRecords('measured')) {
    if (event?.type === 'RunRequested' && event.configs[0] !== undefined) return event.configs[0].gpu
  }
  throw new Error('the recording has no run')
}

const asked: FeedEvent = {
  type: 'RunRequested',
  run_id: 'r1',
  trace_id: 't1',
  configs: [CONFIG],
  simulator: 'analytic',
  name: '',
  refine: null,
}

function rows<Row>(columns: Readonly<Record<string, readonly (number | string | null)[]>>): Rows<Row> {
  const column = (name: string) => columns[name] ?? []
  return {
    count: Object.values(columns)[0]?.length ?? 0,
    numbers: (name) => column(name).map((value) => (value === null ? null : Number(value))),
    texts: (name) => column(name).map(String),
  }
}

const simulated = (taskIds: readonly string[], durations: readonly (number | null)[], simulator = 'analytic'): FeedEvent => ({
  type: 'KernelsSimulated',
  run_id: 'r1',
  config_id: 'c1',
  simulator,
  rows: rows({ task_id: taskIds, family: taskIds.map(() => 'gemm'), duration_ns: durations }),
})

const task = (id: string): FeedEvent => ({
  type: 'KernelTaskTraced',
  trace_id: 't1',
  task_id: id,
  signature_id: 's',
  task: {
    signature: { name: 'k', grid: null, block: null, cluster: null, registers: null, shared_memory_bytes: null },
    op: '',
    operands: [],
    operands_from: 'none',
    tokens: null,
    q_lengths: [],
    kv_lengths: [],
    tokens_per_expert: [],
    ranks: 1,
    moved_bytes: null,
    sass: '',
  },
})

const ACCURACY = {
  type: 'AccuracyMeasured',
  run_id: 'r1',
  config_id: 'c1',
  kernel_count: 0,
  median_ape_ppm: null,
  mape_ppm: null,
  weighted_error_ppm: null,
  total_error_ppm: null,
  roofline_mape_ppm: null,
  coverage_ppm: 1_000_000,
  reason: 'not measured on this GPU',
  measured_ttft_ns: null,
  measured_tpot_ns: null,
  ttft_error_ppm: null,
  tpot_error_ppm: null,
} as const

const folded = (...events: readonly (FeedEvent | null)[]): Run => applyAll(emptyRun('r1'), events)

const only = (run: Run): Config => {
  const config = run.configs[0]
  if (config === undefined) throw new Error('no config')
  return config
}

describe('a run in the making', () => {
  it('counts a task once, however often it is traced or simulated', () => {
    const run = folded(asked, task('a'), task('b'), task('a'), simulated(['a'], [5]), simulated(['a', 'b'], [9, null]))
    expect(progress(run, only(run))).toEqual({ done: 2, total: 2 })
    expect(only(run).failedCount).toBe(1)
  })

  it('has no number, and says why, before anything is predicted', () => {
    const run = folded(asked)
    expect(metricOf(only(run), 'tpot')).toBeNull()
    expect(reasonFor(only(run), 'tpot', false)).toBe('not predicted yet')
  })

  it('gives a config that does not fit a word and no number', () => {
    const run = folded(asked, simulated(['a'], [5]), {
      type: 'RequestPredicted',
      run_id: 'r1',
      config_id: 'c1',
      request: 0,
      prompt_tokens: 10,
      ttft: { value_ns: 1, p10_ns: 1, p90_ns: 1 },
      ttft_reason: '',
      tpot: null,
      tpot_reason: '',
      infeasible: 'weights need 140 GiB, 24 GiB are there',
      refined: false,
    })
    expect(infeasible(only(run))).toContain('140 GiB')
    expect(metricOf(only(run), 'ttft')).toBeNull()
    expect(reasonFor(only(run), 'ttft', true)).toContain('140 GiB')
  })

  it('is refined kernel by kernel, and its second answer is not undone by the first said again', () => {
    const refining: FeedEvent = { ...asked, refine: { simulator: 'sass', share_ppm: 900_000, task_limit: 16 } }
    const chosen: FeedEvent = {
      type: 'RefinementChosen',
      run_id: 'r1',
      config_id: 'c1',
      simulator: 'sass',
      tasks: [{ task_id: 'a', share_ppm: 600_000 }, { task_id: 'b', share_ppm: 300_000 }],
      left: [],
      sentence: '2 of 3 kernels go to sass',
    }
    const predicted = (refined: boolean, duration: number): FeedEvent => ({
      type: 'KernelsPredicted',
      run_id: 'r1',
      config_id: 'c1',
      refined,
      rows: rows({ task_id: ['a'], launch_count: [1], duration_ns: [duration], p90_ns: [duration], refinement: [refined ? 'taken:tighter_interval' : null] }),
    })
    const accuracy = (refined: boolean) => ({ ...ACCURACY, refined }) satisfies FeedEvent
    const half = folded(refining, simulated(['a', 'b', 'c'], [5, 6, 7]), predicted(false, 5), accuracy(false), chosen, simulated(['a'], [3], 'sass'))
    expect(only(half).results.size).toBe(3)
    expect(only(half).refinement).toMatchObject({ failedCount: 0, sentence: '2 of 3 kernels go to sass' })
    expect([...(only(half).refinement?.done ?? [])]).toEqual(['a'])
    expect(only(half).isRefined).toBe(false)
    const whole = applyAll(half, [simulated(['b'], [null], 'sass'), predicted(true, 3), accuracy(true), predicted(false, 5), accuracy(false)])
    expect(only(whole)).toMatchObject({ isRefined: true, refinement: { failedCount: 1, takenCount: 1 } })
    expect(only(whole).predicted?.[0]?.durationNs).toBe(3)
  })

  it('counts progress by the time of the tasks that have a result, not by their number', () => {
    const run = folded(asked, task('a'), task('b'), simulated(['a'], [5]))
    expect(shareDone(run, only(run), null)).toBe(0.5)
    expect(shareDone(run, only(run), new Map([['a', 9], ['b', 1]]))).toBe(0.9)
    expect(shareDone(run, only(run), new Map())).toBe(0)
  })

  it('stays cancelled, unless it had ended before', () => {
    const ended: FeedEvent = { type: 'RunCompleted', run_id: 'r1', outcome: 'completed', failed_count: 0, state_hash: 'h' }
    const cancelled: FeedEvent = { type: 'RunCancelled', run_id: 'r1' }
    expect(folded(asked, cancelled).status).toBe('cancelled')
    expect(folded(asked, ended, cancelled).status).toBe('completed')
  })

  it('counts what it does not know instead of stumbling over it', () => {
    expect(folded(asked, null, null).unknownCount).toBe(2)
  })
})
