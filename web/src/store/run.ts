import type { FeedEvent } from '../feed/events'
import { unreachable } from '../lib/unreachable'
import { ms, msOfNs, ns, ratio, ratioOfPpm, type Estimate, type Ms, type Ratio } from '../lib/units'
import { provenanceOf, type Provenance } from '../lib/words'
import type { Estimate as EstimateNs, RunConfig, RunRequested, StepTraced } from '../schema/events'

/** What is known of a run: a fold of its events and its trace's, the same as the server's. */
export interface Run {
  readonly runId: string
  readonly status: RunStatus
  readonly simulator: string
  /** The simulator that kernels are refined with; '' where the first answer is the last. */
  readonly refineWith: string
  readonly reason: string
  readonly stateHash: string
  readonly failedCount: number
  readonly trace: Trace
  readonly configs: readonly Config[]
  /** Records of types this page does not know: shown, never dropped in silence. */
  readonly unknownCount: number
}

export type RunStatus = 'unknown' | 'running' | 'completed' | 'completed_with_failures' | 'failed' | 'cancelled'

export interface Trace {
  readonly traceId: string
  readonly name: string
  readonly status: 'unknown' | 'importing' | 'complete' | 'rejected'
  readonly provenance: Provenance | null
  readonly tool: string
  readonly sourceGpu: string | null
  readonly model: string
  readonly engine: string
  readonly rankCount: number
  readonly worldSize: number
  readonly isTruncated: boolean
  readonly tasks: ReadonlySet<string>
  readonly launchCount: number
  readonly kernelCount: number
  readonly steps: ReadonlyMap<number, TracedStep>
}

export interface TracedStep {
  readonly phase: string
  readonly contextTokens: number
  readonly generationRequests: number
}

export interface Config {
  readonly spec: RunConfig
  /** Family per simulated task; the first result of a task stands. */
  readonly results: ReadonlyMap<string, string>
  readonly failedCount: number
  readonly predicted: readonly PredictedKernel[] | null
  readonly steps: readonly PredictedStep[] | null
  readonly assumptions: readonly string[]
  readonly request: PredictedRequest | null
  readonly accuracy: Accuracy | null
  readonly refinement: ConfigRefinement | null
  /** The answer that is shown rests on refined kernels, where those stand. */
  readonly isRefined: boolean
}

/** Which kernels of a config are simulated again, and how far that is. */
export interface ConfigRefinement {
  /** Share of the steps' variance per task, largest first. */
  readonly chosen: ReadonlyMap<string, Ratio>
  readonly done: ReadonlySet<string>
  readonly failedCount: number
  readonly takenCount: number
  readonly sentence: string
}

export interface PredictedKernel {
  readonly taskId: string
  readonly launchCount: number
  readonly durationNs: number | null
  readonly p90Ns: number | null
}

export interface PredictedStep {
  readonly step: number
  readonly phase: string
  readonly duration: Estimate
}

export interface PredictedRequest {
  readonly request: number
  readonly promptTokens: number | null
  readonly ttft: Estimate | null
  readonly ttftReason: string
  readonly tpot: Estimate | null
  readonly tpotReason: string
  /** Why no number can be given; '' where one can. */
  readonly infeasible: string
}

export interface Accuracy {
  readonly kernelCount: number
  readonly median: Ratio | null
  readonly mean: Ratio | null
  readonly weighted: Ratio | null
  readonly total: Ratio | null
  readonly roofline: Ratio | null
  readonly coverage: Ratio
  readonly reason: string
}

export function emptyRun(runId: string): Run {
  return {
    runId,
    status: 'unknown',
    simulator: '',
    refineWith: '',
    reason: '',
    stateHash: '',
    failedCount: 0,
    trace: {
      traceId: '',
      name: '',
      status: 'unknown',
      provenance: null,
      tool: '',
      sourceGpu: null,
      model: '',
      engine: '',
      rankCount: 1,
      worldSize: 1,
      isTruncated: false,
      tasks: new Set(),
      launchCount: 0,
      kernelCount: 0,
      steps: new Map(),
    },
    configs: [],
    unknownCount: 0,
  }
}

/**
 * Many events at once. Those that only say that tasks or steps exist are taken together, since traces have thousands and
 * no other event rests on them.
 */
export function applyAll(run: Run, events: readonly (FeedEvent | null)[]): Run {
  const tasks: string[] = []
  const steps: StepTraced[] = []
  for (const event of events) {
    if (event?.type === 'KernelTaskTraced') tasks.push(event.task_id)
    else if (event?.type === 'StepTraced') steps.push(event)
    else run = applyEvent(run, event)
  }
  return withSteps(withTasks(run, tasks), steps)
}

export function applyEvent(run: Run, event: FeedEvent | null): Run {
  if (event === null) return { ...run, unknownCount: run.unknownCount + 1 }
  switch (event.type) {
    case 'TraceUploaded':
      return withTrace(run, { traceId: event.trace_id, name: event.name, status: startedOr(run, 'importing') })
    case 'TraceStarted':
      return withTrace(run, {
        traceId: event.trace_id,
        name: event.name,
        status: startedOr(run, 'importing'),
        provenance: provenanceOf(event.provenance),
        tool: event.tool,
        sourceGpu: event.source_gpu,
        model: event.model?.name ?? '',
        engine: `${event.engine} ${event.engine_version}`.trim(),
        rankCount: event.rank_count,
        worldSize: event.world_size,
      })
    case 'KernelTaskTraced':
      return withTasks(run, [event.task_id])
    case 'StepTraced':
      return withSteps(run, [event])
    case 'TraceCompleted':
      return withTrace(run, {
        status: 'complete',
        isTruncated: event.is_truncated,
        launchCount: event.launch_count,
        kernelCount: event.kernel_count,
      })
    case 'TraceRejected':
      return { ...withTrace(run, { status: 'rejected', name: event.name }), reason: event.reason }
    case 'RunRequested':
      return event.run_id === run.runId ? requested(run, event) : run
    case 'RunCancelled':
      return run.status === 'running' || run.status === 'unknown' ? { ...run, status: 'cancelled' } : run
    case 'KernelsSimulated':
      return withConfig(run, event.config_id, (config) =>
        event.simulator === run.refineWith ? withRefined(config, simulatedRows(event)) : withResults(config, simulatedRows(event)),
      )
    case 'RefinementChosen': {
      const chosen = new Map(event.tasks.map((task) => [task.task_id, ratioOfPpm(task.share_ppm)]))
      return withConfig(run, event.config_id, (config) => ({
        ...config,
        refinement: { ...(config.refinement ?? NOT_REFINED), chosen, sentence: event.sentence },
      }))
    }
    case 'KernelsPredicted': {
      const predicted = predictedKernels(event)
      return withAnswer(run, event, (config) => ({
        ...config,
        predicted,
        refinement: event.refined && config.refinement ? { ...config.refinement, takenCount: takenCount(event) } : config.refinement,
      }))
    }
    case 'StepsPredicted': {
      const steps = predictedSteps(event)
      return withAnswer(run, event, (config) => ({ ...config, assumptions: [...event.assumptions].sort(), steps }))
    }
    case 'RequestPredicted':
      return withAnswer(run, event, (config) => ({
        ...config,
        request: {
          request: event.request,
          promptTokens: event.prompt_tokens,
          ttft: event.ttft && estimate(event.ttft),
          ttftReason: event.ttft_reason,
          tpot: event.tpot && estimate(event.tpot),
          tpotReason: event.tpot_reason,
          infeasible: event.infeasible,
        },
      }))
    case 'AccuracyMeasured':
      return withAnswer(run, event, (config) => ({
        ...config,
        isRefined: config.isRefined || event.refined,
        accuracy: {
          kernelCount: event.kernel_count,
          median: ratioOrNull(event.median_ape_ppm),
          mean: ratioOrNull(event.mape_ppm),
          weighted: ratioOrNull(event.weighted_error_ppm),
          total: ratioOrNull(event.total_error_ppm),
          roofline: ratioOrNull(event.roofline_mape_ppm),
          coverage: ratioOfPpm(event.coverage_ppm),
          reason: event.reason,
        },
      }))
    case 'RunCompleted':
      return { ...run, status: event.outcome, stateHash: event.state_hash, failedCount: event.failed_count }
    case 'RunFailed':
      return { ...run, status: 'failed', reason: event.reason }
    case 'SimulatorStarted':
    case 'SimulatorLogged': // lines are asked for by number, where someone reads them
    case 'SimulatorFinished':
    case 'SignatureTraced':
    case 'LaunchesTraced':
    case 'HostProfileMeasured':
    case 'ArtifactStored':
    case 'LaunchesRecorded':
    case 'RecordingStarted':
    case 'GraphCaptured':
    case 'OpsRecorded':
    case 'StepRecorded':
    case 'HostProfileRecorded':
    case 'TraceHeartbeat':
    case 'TraceEnded':
    case 'KernelSimulationRequested':
    case 'RecordDeadLettered':
      return run // nothing on these pages rests on them
    default:
      return unreachable(event)
  }
}

/** What of a run's records `applyEvent` looks at: all that a viewer needs to be sent. */
export const FOLDED_TYPES: readonly FeedEvent['type'][] = [
  'TraceUploaded',
  'TraceStarted',
  'KernelTaskTraced',
  'StepTraced',
  'TraceCompleted',
  'TraceRejected',
  'RunRequested',
  'RunCancelled',
  'KernelsSimulated',
  'KernelsPredicted',
  'StepsPredicted',
  'RequestPredicted',
  'AccuracyMeasured',
  'RefinementChosen',
  'RunCompleted',
  'RunFailed',
]

function requested(run: Run, event: RunRequested): Run {
  if (run.configs.length > 0) return run
  const configs = event.configs.map((spec) => ({
    spec,
    results: new Map<string, string>(),
    failedCount: 0,
    predicted: null,
    steps: null,
    assumptions: [],
    request: null,
    accuracy: null,
    refinement: null,
    isRefined: false,
  }))
  const status = run.status === 'unknown' ? 'running' : run.status
  return { ...run, status, simulator: event.simulator, refineWith: event.refine?.simulator ?? '', configs }
}

function withTrace(run: Run, changes: Partial<Trace>): Run {
  return { ...run, trace: { ...run.trace, ...changes } }
}

function startedOr(run: Run, status: Trace['status']): Trace['status'] {
  return run.trace.status === 'unknown' ? status : run.trace.status
}

function withTasks(run: Run, taskIds: readonly string[]): Run {
  if (taskIds.every((id) => run.trace.tasks.has(id))) return run
  return withTrace(run, { tasks: new Set([...run.trace.tasks, ...taskIds]) })
}

function withSteps(run: Run, traced: readonly StepTraced[]): Run {
  if (traced.length === 0) return run
  const steps = new Map(run.trace.steps)
  for (const event of traced) {
    steps.set(event.step, { phase: event.phase, contextTokens: event.context_tokens, generationRequests: event.generation_requests })
  }
  return withTrace(run, { steps })
}

function withConfig(run: Run, configId: string, change: (config: Config) => Config): Run {
  return {
    ...run,
    configs: run.configs.map((config) => (config.spec.config_id === configId ? change(config) : config)),
  }
}

/** A first answer that is said again, after a crash, does not undo the second one. */
function withAnswer(run: Run, event: { readonly config_id: string; readonly refined: boolean }, change: (config: Config) => Config): Run {
  return withConfig(run, event.config_id, (config) => (config.isRefined && !event.refined ? config : change(config)))
}

const NOT_REFINED: ConfigRefinement = { chosen: new Map(), done: new Set(), failedCount: 0, takenCount: 0, sentence: '' }

/** What an event's rows say, read once: a moment is folded again each time one comes to it. */
function remembered<Event extends object, Value>(read: (event: Event) => Value): (event: Event) => Value {
  const known = new WeakMap<Event, Value>()
  return (event) => {
    const before = known.get(event)
    if (before !== undefined) return before
    const value = read(event)
    known.set(event, value)
    return value
  }
}

type Of<Type extends FeedEvent['type']> = Extract<FeedEvent, { readonly type: Type }>

const predictedKernels = remembered(({ rows }: Of<'KernelsPredicted'>): readonly PredictedKernel[] => {
  const [ids, counts] = [rows.texts('task_id'), rows.numbers('launch_count')]
  const [durations, p90s] = [rows.numbers('duration_ns'), rows.numbers('p90_ns')]
  return ids.map((taskId, row) => ({
    taskId,
    launchCount: counts[row] ?? 0,
    durationNs: durations[row] ?? null,
    p90Ns: p90s[row] ?? null,
  }))
})

const predictedSteps = remembered(({ rows }: Of<'StepsPredicted'>): readonly PredictedStep[] => {
  const [steps, phases] = [rows.numbers('step'), rows.texts('phase')]
  const [values, p10s, p90s] = (['duration_ns', 'p10_ns', 'p90_ns'] as const).map((name) => rows.numbers(name))
  return steps.map((step, row) => ({
    step: step ?? 0,
    phase: phases[row] ?? 'unknown',
    duration: estimate({ value_ns: values?.[row] ?? 0, p10_ns: p10s?.[row] ?? 0, p90_ns: p90s?.[row] ?? 0 }),
  }))
})

const simulatedRows = remembered(({ rows }: Of<'KernelsSimulated'>) => ({
  taskIds: rows.texts('task_id'),
  families: rows.texts('family'),
  durations: rows.numbers('duration_ns'),
}))

function withResults(
  config: Config,
  { taskIds, families, durations }: ReturnType<typeof simulatedRows>,
): Config {
  const results = new Map(config.results)
  let failedCount = config.failedCount
  taskIds.forEach((taskId, row) => {
    if (results.has(taskId)) return
    results.set(taskId, families[row] ?? 'unknown')
    if (durations[row] == null) failedCount += 1
  })
  return { ...config, results, failedCount }
}

function withRefined(config: Config, { taskIds, durations }: ReturnType<typeof simulatedRows>): Config {
  const before = config.refinement ?? NOT_REFINED
  const done = new Set(before.done)
  let failedCount = before.failedCount
  taskIds.forEach((taskId, row) => {
    if (done.has(taskId)) return
    done.add(taskId)
    if (durations[row] == null) failedCount += 1
  })
  return { ...config, refinement: { ...before, done, failedCount } }
}

const takenCount = remembered(
  ({ rows }: Of<'KernelsPredicted'>) => rows.texts('refinement').filter((verdict) => verdict.startsWith('taken:')).length,
)

function estimate(said: EstimateNs): Estimate {
  return { value: msOfNs(ns(said.value_ns)), p10: msOfNs(ns(said.p10_ns)), p90: msOfNs(ns(said.p90_ns)) }
}

function ratioOrNull(ppm: number | null): Ratio | null {
  return ppm === null ? null : ratioOfPpm(ppm)
}

// --- derived --------------------------------------------------------------------------------------------------------

const Z90 = 1.2815515655446004 // standard normal quantile of 0.9, as in the aggregator's composer

/** Sum over all launches; errors of one family fully correlated, families independent, as the aggregator does it. */
export function kernelTime(config: Config): Estimate | null {
  const families = new Map<string, { totalNs: number; spread: number }>()
  for (const { taskId, durationNs, p90Ns, launchCount } of config.predicted ?? []) {
    const family = config.results.get(taskId)
    if (family === undefined || durationNs === null || durationNs <= 0) continue
    const so = families.get(family) ?? { totalNs: 0, spread: 0 }
    const totalNs = durationNs * launchCount
    families.set(family, {
      totalNs: so.totalNs + totalNs,
      spread: so.spread + totalNs * Math.log((p90Ns ?? durationNs) / durationNs),
    })
  }
  if (families.size === 0) return null
  const rows = [...families.values()]
  const totalNs = rows.reduce((sum, row) => sum + row.totalNs, 0)
  const sigma = Math.sqrt(rows.reduce((sum, row) => sum + (row.spread / Z90) ** 2, 0)) / totalNs
  return {
    value: msOfNs(ns(totalNs)),
    p10: msOfNs(ns(Math.round(totalNs * Math.exp(-Z90 * sigma)))),
    p90: msOfNs(ns(Math.round(totalNs * Math.exp(Z90 * sigma)))),
  }
}

/** Mean over the predicted steps of a phase; null where the trace has none. */
export function meanStep(config: Config, phase: 'prefill' | 'decode'): Estimate | null {
  const chosen = (config.steps ?? []).filter((step) => step.phase === phase)
  if (chosen.length === 0) return null
  const mean = (name: keyof Estimate): Ms =>
    ms(chosen.reduce((sum, step) => sum + step.duration[name], 0) / chosen.length)
  return { value: mean('value'), p10: mean('p10'), p90: mean('p90') }
}

export type Metric = 'kernel' | 'prefill' | 'decode' | 'ttft' | 'tpot'

export const METRICS: readonly Metric[] = ['kernel', 'prefill', 'decode', 'ttft', 'tpot']

const metrics = new WeakMap<Config, Map<Metric, Estimate | null>>()

/** Worked out once per state of a config: tiles, table and headline all ask for the same ones. */
export function metricOf(config: Config, metric: Metric): Estimate | null {
  const known = metrics.get(config) ?? new Map<Metric, Estimate | null>()
  metrics.set(config, known)
  const before = known.get(metric)
  if (before !== undefined) return before
  const found = estimateOf(config, metric)
  known.set(metric, found)
  return found
}

function estimateOf(config: Config, metric: Metric): Estimate | null {
  if (infeasible(config) !== '') return null
  switch (metric) {
    case 'kernel':
      return kernelTime(config)
    case 'prefill':
    case 'decode':
      return meanStep(config, metric)
    case 'ttft':
      return config.request?.ttft ?? null
    case 'tpot':
      return config.request?.tpot ?? null
    default:
      return unreachable(metric)
  }
}

/** Why this metric has no number, where that is known. */
export function reasonFor(config: Config, metric: Metric, isRunOver: boolean): string {
  if (infeasible(config) !== '') return infeasible(config)
  if (config.request === null) {
    return isRunOver ? 'the run ended before this was predicted' : 'not predicted yet'
  }
  if (metric === 'ttft') return config.request.ttftReason
  if (metric === 'tpot') return config.request.tpotReason
  if (metric === 'prefill' || metric === 'decode') return `the trace has no pure ${metric} step`
  return 'no kernel of this config has a result'
}

export const infeasible = (config: Config): string => config.request?.infeasible ?? ''

export const requestedConfigs = (run: Run): readonly Config[] => run.configs.filter((config) => config.spec.is_requested)

export const isOver = (run: Run): boolean => run.status !== 'running' && run.status !== 'unknown'

/** Everything about this config has been said. */
export const isPredicted = (config: Config): boolean => config.accuracy !== null

/** Share of the tasks known so far that have a result; what is not traced yet is not in it. */
export function progress(run: Run, config: Config): { readonly done: number; readonly total: number } {
  return { done: config.results.size, total: run.trace.tasks.size }
}

/**
 * Share of the trace's time that is simulated: a task counts by its launches times what one took where it was recorded,
 * or by its launches alone where nothing was measured. weights: per task id; null: not known yet, every task counts alike.
 */
export function shareDone(run: Run, config: Config, weights: ReadonlyMap<string, number> | null): Ratio {
  const { done, total } = progress(run, config)
  if (weights === null) return ratio(total > 0 ? done / total : 0)
  let [sum, known] = [0, 0]
  for (const [taskId, weight] of weights) {
    sum += weight
    if (config.results.has(taskId)) known += weight
  }
  return ratio(sum > 0 ? known / sum : 0)
}

/** The metric that answers the question best: TPOT, else TTFT, else the kernels' time. */
export function headlineMetric(run: Run): Metric {
  const configs = requestedConfigs(run)
  const order: readonly Metric[] = ['tpot', 'ttft', 'kernel']
  return order.find((metric) => configs.some((config) => metricOf(config, metric) !== null)) ?? 'tpot'
}
