import { boundShown } from '../lib/families'

/** One config's answer per task, as the server says it. Times in ns; NaN: not known. */
export interface ResultColumns {
  readonly task: Uint32Array
  readonly duration: Float64Array
  readonly p10: Float64Array
  readonly p90: Float64Array
  readonly forward: Float64Array
  readonly roofline: Float64Array
  readonly measured: Float64Array
  readonly correction: Float64Array
  readonly family: readonly string[]
  readonly bound: readonly string[]
  readonly tier: readonly string[]
  readonly reason: readonly string[]
  readonly isFailed: Uint8Array
}

/** The same by task index, with what stands in where nothing is known yet. */
export interface Results {
  readonly columns: ResultColumns
  /** Row of a task; -1: no result yet. */
  readonly rowOf: Int32Array
  /** ns that the lanes are composed with: -1 failed; a stand-in where pending. */
  readonly duration: Float64Array
  readonly isPending: Uint8Array
}

export const NO_RESULTS: ResultColumns = {
  task: new Uint32Array(0),
  duration: new Float64Array(0),
  p10: new Float64Array(0),
  p90: new Float64Array(0),
  forward: new Float64Array(0),
  roofline: new Float64Array(0),
  measured: new Float64Array(0),
  correction: new Float64Array(0),
  family: [],
  bound: [],
  tier: [],
  reason: [],
  isFailed: new Uint8Array(0),
}

/** A guess that only holds a place, drawn as pending and counted nowhere, before anything at all is known. */
const PLACE_NS = 5_000

/**
 * standIn: ns per task that another config or the source has, NaN where none has. A task without a result takes its
 * place by it, else by the mean of what this config has.
 */
export function resultsOf(columns: ResultColumns, taskCount: number, standIn: Float64Array): Results {
  const rowOf = new Int32Array(taskCount).fill(-1)
  const duration = new Float64Array(taskCount)
  const isPending = new Uint8Array(taskCount).fill(1)
  let [sum, count] = [0, 0]
  columns.task.forEach((task, row) => {
    if (task >= taskCount) return
    rowOf[task] = row
    isPending[task] = 0
    const value = columns.duration[row] ?? Number.NaN
    const isKnown = columns.isFailed[row] !== 1 && value >= 0
    duration[task] = isKnown ? value : -1
    if (isKnown) [sum, count] = [sum + value, count + 1]
  })
  const mean = count > 0 ? Math.round(sum / count) : PLACE_NS
  for (let task = 0; task < taskCount; task += 1) {
    const elsewhere = standIn[task] ?? 0
    if (isPending[task] === 1) duration[task] = elsewhere > 0 ? elsewhere : mean
  }
  return { columns, rowOf, duration, isPending }
}

// --- colour classes -------------------------------------------------------------------------------------------------

export const BOUNDS = ['tensor', 'dram', 'l2', 'issue', 'launch', 'host', 'link', 'unknown'] as const
export const ERRORS = ['error-m20', 'error-m10', 'error-m5', 'error-0', 'error-p5', 'error-p10', 'error-p20', 'family-unknown'] as const

export const boundTokens = (): readonly string[] => BOUNDS.map((bound) => boundShown(bound).token)

export function boundClasses(results: Results): Uint8Array {
  return Uint8Array.from(results.rowOf, (row) => {
    const at = BOUNDS.indexOf((results.columns.bound[row] ?? 'unknown') as (typeof BOUNDS)[number])
    return at < 0 ? BOUNDS.length - 1 : at
  })
}

/** Of the forward prediction against what was measured on the same GPU; grey where nothing was. */
export function errorClasses(results: Results): Uint8Array {
  return Uint8Array.from(results.rowOf, (row) => {
    const measured = results.columns.measured[row] ?? Number.NaN
    const error = ((results.columns.forward[row] ?? Number.NaN) - measured) / measured
    return Number.isFinite(error) ? errorClass(error) : ERRORS.length - 1
  })
}

const LIMITS = [-0.15, -0.075, -0.025, 0.025, 0.075, 0.15]

function errorClass(error: number): number {
  const at = LIMITS.findIndex((limit) => error < limit)
  return at < 0 ? LIMITS.length : at
}
