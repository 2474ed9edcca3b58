import type { Lane } from './order'
import { firstAfter } from './raster'

/** What runs in a stretch of time on one config: launches that start in [t0, t1). */
export interface AreaStats {
  readonly count: number
  readonly pendingCount: number
  /** Sum of the durations, ns. */
  readonly busy: number
  /** Time of [t0, t1) in which no lane runs anything. */
  readonly gaps: number
  readonly min: number
  readonly mean: number
  readonly p99: number
  readonly max: number
  /** Position of the longest. */
  readonly argmax: number
  /** Sum per class of `classOf`. */
  readonly classes: ReadonlyMap<number, number>
}

export interface AreaInput {
  readonly lanes: readonly Pick<Lane, 'first' | 'last'>[]
  /** By position, ns of the config's own time. */
  readonly start: Float64Array
  readonly duration: (position: number) => number
  readonly task: Uint32Array
  readonly classOf: Uint8Array
  readonly isPending: Uint8Array
}

/** t0, t1: ns of the config's own time. Launches without a result are counted apart and add to nothing else. */
export function areaStats(input: AreaInput, t0: number, t1: number): AreaStats {
  const { lanes, start, duration, task, classOf, isPending } = input
  const values = new Map<number, number>() // duration -> launches: tasks repeat, so distinct ones are few
  const classes = new Map<number, number>()
  let [count, pendingCount, busy, longest, argmax] = [0, 0, 0, -1, -1]
  for (const lane of lanes) {
    const last = firstFrom(start, lane.first, lane.last, t1)
    for (let position = firstFrom(start, lane.first, lane.last, t0); position < last; position += 1) {
      const which = task[position] ?? 0
      if (isPending[which] === 1) {
        pendingCount += 1
        continue
      }
      const value = Math.max(0, duration(position))
      count += 1
      busy += value
      values.set(value, (values.get(value) ?? 0) + 1)
      const kind = classOf[which] ?? 0
      classes.set(kind, (classes.get(kind) ?? 0) + value)
      if (value > longest) [longest, argmax] = [value, position]
    }
  }
  const sorted = [...values].sort(([a], [b]) => a - b)
  return {
    count,
    pendingCount,
    busy,
    gaps: t1 - t0 - covered(input, t0, t1),
    min: sorted[0]?.[0] ?? Number.NaN,
    mean: count > 0 ? busy / count : Number.NaN,
    p99: quantile(sorted, count, 0.99),
    max: sorted.at(-1)?.[0] ?? Number.NaN,
    argmax,
    classes,
  }
}

/** The value that a share of the launches does not exceed (nearest rank). */
function quantile(sorted: readonly (readonly [number, number])[], count: number, share: number): number {
  const rank = Math.ceil(share * count)
  let seen = 0
  for (const [value, launches] of sorted) {
    seen += launches
    if (seen >= rank) return value
  }
  return Number.NaN
}

const firstFrom = (start: Float64Array, first: number, last: number, time: number): number => firstAfter(start, first, last, time - 0.5)

/** Time of [t0, t1) in which some lane runs something: the lanes' launches merged in order of their starts. */
function covered({ lanes, start, duration }: AreaInput, t0: number, t1: number): number {
  const heads = lanes.map((lane) => ({ at: Math.max(lane.first, firstFrom(start, lane.first, lane.last, t0) - 1), last: firstFrom(start, lane.first, lane.last, t1) }))
  let [sum, end] = [0, t0]
  for (;;) {
    let next: { at: number; last: number } | null = null
    for (const head of heads) {
      if (head.at < head.last && (next === null || (start[head.at] ?? 0) < (start[next.at] ?? 0))) next = head
    }
    if (next === null) return sum
    const begin = Math.max(start[next.at] ?? 0, end)
    const finish = Math.min((start[next.at] ?? 0) + Math.max(0, duration(next.at)), t1)
    if (finish > begin) {
      sum += finish - begin
      end = finish
    }
    next.at += 1
  }
}
