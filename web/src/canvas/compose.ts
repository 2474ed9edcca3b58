import type { Order } from './order'

/** When each launch starts on one config; ns, by position of the order. Equal to the aggregator's timeline.py. */
export interface Composed {
  readonly start: Float64Array
  /** Of each (rank, step), in the order of the segments' groups. */
  readonly stepStart: Float64Array
  readonly stepEnd: Float64Array
  /** End of the last step of any rank. */
  readonly total: number
}

export interface Gaps {
  readonly graph_ns: number
  readonly eager_ns: number
}

/**
 * Steps follow each other; within one, each stream runs its launches in order with the default gap after each.
 * durations: ns per task; what is not above 0 (failed: -1) takes no time of its own.
 */
export function compose(order: Order, durations: Float64Array, gaps: Gaps): Composed {
  const { task, graph, segments } = order
  const start = new Float64Array(task.length)
  const stepStart = new Float64Array(segments.groups.length)
  const stepEnd = new Float64Array(segments.groups.length)
  const clocks = new Map<number, number>()
  let total = 0
  let at = 0
  segments.groups.forEach(({ rank }, group) => {
    const began = clocks.get(rank) ?? 0
    let end = began
    for (; segments.group[at] === group; at += 1) {
      const last = segments.last[at] ?? 0
      let now = began
      for (let position = segments.first[at] ?? 0; position < last; position += 1) {
        start[position] = now
        const duration = durations[task[position] ?? 0] ?? 0
        now += (duration > 0 ? duration : 0) + (graph[position] === 1 ? gaps.graph_ns : gaps.eager_ns)
      }
      end = Math.max(end, now)
    }
    stepStart[group] = began
    stepEnd[group] = end
    clocks.set(rank, end)
    total = Math.max(total, end)
  })
  return { start, stepStart, stepEnd, total }
}

/** Where each step starts when equal steps of all configs start together: after the longest of those before it. */
export function alignedSteps(order: Order, configs: readonly Composed[]): Float64Array {
  const { groups } = order.segments
  const begins = new Float64Array(groups.length)
  const clocks = new Map<number, number>()
  groups.forEach(({ rank }, group) => {
    const began = clocks.get(rank) ?? 0
    const longest = Math.max(0, ...configs.map(({ stepStart, stepEnd }) => (stepEnd[group] ?? 0) - (stepStart[group] ?? 0)))
    begins[group] = began
    clocks.set(rank, began + longest)
  })
  return begins
}

/** The starts with every step moved to where it begins on a shared axis. */
export function moved(order: Order, composed: Composed, begins: Float64Array): Float64Array {
  const { first, last, group } = order.segments
  const start = composed.start.slice()
  for (let at = 0; at < first.length; at += 1) {
    const shift = (begins[group[at] ?? 0] ?? 0) - (composed.stepStart[group[at] ?? 0] ?? 0)
    const end = last[at] ?? 0
    for (let position = first[at] ?? 0; position < end; position += 1) start[position] = (start[position] ?? 0) + shift
  }
  return start
}
