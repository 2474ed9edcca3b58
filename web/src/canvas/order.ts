import type { LaunchColumns } from './launches'

/** One stream of one rank: the positions [first, last) of an order. */
export interface Lane {
  readonly rank: number
  readonly stream: number
  readonly first: number
  readonly last: number
}

/**
 * Launches by lane and, within one, as they run. A position is a place in this order, a row one in the trace's.
 * All configs share it: a launch has the same position on each, only its time differs.
 */
export interface Order {
  readonly lanes: readonly Lane[]
  /** Row of each position. */
  readonly row: Uint32Array
  readonly task: Uint32Array
  readonly graph: Uint8Array
  /** Position of each row; NONE where the row is in no lane. */
  readonly position: Uint32Array
  readonly segments: Segments
}

export const NONE = 0xffffffff

/** Stretches of positions of one (rank, step, lane), in order of rank and step: steps follow each other in it. */
export interface Segments {
  readonly first: Uint32Array
  readonly last: Uint32Array
  /** Index of the (rank, step) each belongs to, in `groups`. */
  readonly group: Uint32Array
  readonly groups: readonly StepGroup[]
  /** Segment numbers by first position, to find a position's. */
  readonly byPosition: Uint32Array
}

export interface StepGroup {
  readonly rank: number
  readonly step: number
}

/** The order of simulated lanes: launches outside every step have no simulated time and are left out. */
export function stepOrder(launches: LaunchColumns): Order {
  const { lanes, row } = byLane(launches, (at) => (launches.step[at] ?? -1) >= 0)
  for (const { first, last } of lanes) sortBySteps(row, first, last, launches.step)
  return finished(launches, lanes, row, segmentsOf(launches, lanes, row))
}

/** The order of lanes as measured: by their own start. Launches without a measured time are left out. */
export function measuredOrder(launches: LaunchColumns): Order | null {
  const { measuredStart, measuredDuration } = launches
  if (measuredStart === null || measuredDuration === null) return null
  const { lanes, row } = byLane(launches, (at) => (measuredDuration[at] ?? -1) >= 0 && !Number.isNaN(measuredStart[at] ?? Number.NaN))
  for (const { first, last } of lanes) sortByTime(row, first, last, measuredStart)
  return finished(launches, lanes, row, NO_SEGMENTS)
}

/** One lane per rank of when the host asked for each launch. */
export function hostOrder(launches: LaunchColumns): Order | null {
  const { hostStart } = launches
  if (hostStart === null) return null
  const one = { ...launches, stream: new Uint16Array(launches.count) }
  const { lanes, row } = byLane(one, (at) => !Number.isNaN(hostStart[at] ?? Number.NaN))
  for (const { first, last } of lanes) sortByTime(row, first, last, hostStart)
  return finished(launches, lanes, row, NO_SEGMENTS)
}

const NO_SEGMENTS: Segments = {
  first: new Uint32Array(0),
  last: new Uint32Array(0),
  group: new Uint32Array(0),
  groups: [],
  byPosition: new Uint32Array(0),
}

/** Counting, not sorting: a million rows take a few milliseconds. */
function byLane(launches: LaunchColumns, isIn: (row: number) => boolean): { readonly lanes: Lane[]; readonly row: Uint32Array } {
  const { count, rank, stream } = launches
  const sizes = new Map<number, number>()
  const keys = new Float64Array(count)
  for (let at = 0; at < count; at += 1) {
    const key = isIn(at) ? (rank[at] ?? 0) * 65_536 + (stream[at] ?? 0) : -1
    keys[at] = key
    if (key >= 0) sizes.set(key, (sizes.get(key) ?? 0) + 1)
  }
  const lanes: Lane[] = []
  const next = new Map<number, number>()
  let first = 0
  for (const [key, size] of [...sizes].sort(([a], [b]) => a - b)) {
    lanes.push({ rank: Math.floor(key / 65_536), stream: key % 65_536, first, last: first + size })
    next.set(key, first)
    first += size
  }
  const row = new Uint32Array(first)
  let lane = -1
  let place = 0
  for (let at = 0; at < count; at += 1) {
    const key = keys[at] ?? -1
    if (key < 0) continue
    if (key !== lane) {
      if (lane >= 0) next.set(lane, place)
      lane = key
      place = next.get(key) ?? 0
    }
    row[place] = at
    place += 1
  }
  return { lanes, row }
}

function sortBySteps(row: Uint32Array, first: number, last: number, step: Int32Array): void {
  let before = -1
  for (let at = first; at < last; at += 1) {
    const now = step[row[at] ?? 0] ?? 0
    if (now < before) {
      row.subarray(first, last).sort((a, b) => (step[a] ?? 0) - (step[b] ?? 0) || a - b)
      return
    }
    before = now
  }
}

function sortByTime(row: Uint32Array, first: number, last: number, time: Float64Array): void {
  let before = -Infinity
  for (let at = first; at < last; at += 1) {
    const now = time[row[at] ?? 0] ?? 0
    if (now < before) {
      row.subarray(first, last).sort((a, b) => (time[a] ?? 0) - (time[b] ?? 0) || a - b)
      return
    }
    before = now
  }
}

function segmentsOf(launches: LaunchColumns, lanes: readonly Lane[], row: Uint32Array): Segments {
  const found: { readonly first: number; readonly last: number; readonly rank: number; readonly step: number }[] = []
  for (const lane of lanes) {
    let first = lane.first
    while (first < lane.last) {
      const step = launches.step[row[first] ?? 0] ?? 0
      let last = first + 1
      while (last < lane.last && launches.step[row[last] ?? 0] === step) last += 1
      found.push({ first, last, rank: lane.rank, step })
      first = last
    }
  }
  const inTime = [...found].sort((a, b) => a.rank - b.rank || a.step - b.step || a.first - b.first)
  const groups: StepGroup[] = []
  const group = new Uint32Array(inTime.length)
  inTime.forEach(({ rank, step }, at) => {
    const newest = groups.at(-1)
    if (newest?.rank !== rank || newest.step !== step) groups.push({ rank, step })
    group[at] = groups.length - 1
  })
  const numbers = Uint32Array.from(inTime.keys())
  return {
    first: Uint32Array.from(inTime, (one) => one.first),
    last: Uint32Array.from(inTime, (one) => one.last),
    group,
    groups,
    byPosition: numbers.sort((a, b) => (inTime[a]?.first ?? 0) - (inTime[b]?.first ?? 0)),
  }
}

function finished(launches: LaunchColumns, lanes: readonly Lane[], row: Uint32Array, segments: Segments): Order {
  const task = new Uint32Array(row.length)
  const graph = new Uint8Array(row.length)
  const position = new Uint32Array(launches.count).fill(NONE)
  for (let at = 0; at < row.length; at += 1) {
    const from = row[at] ?? 0
    task[at] = launches.task[from] ?? 0
    graph[at] = launches.graph[from] ?? 0
    position[from] = at
  }
  return { lanes, row, task, graph, position, segments }
}

/** The (rank, step) a position belongs to, as an index of `groups`; -1 where it belongs to none. */
export function groupAt(segments: Segments, position: number): number {
  const { byPosition, first, last, group } = segments
  let [low, high] = [0, byPosition.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if ((first[byPosition[middle] ?? 0] ?? 0) <= position) low = middle + 1
    else high = middle
  }
  const found = byPosition[low - 1]
  return found !== undefined && position < (last[found] ?? 0) ? (group[found] ?? -1) : -1
}
