import { familyShown } from '../lib/families'
import { count, timeWithUnit } from '../lib/format'
import { ms } from '../lib/units'
import type { Group, GroupLane } from './groups'
import { shortKernel } from './labels'
import type { LaunchColumns, LayoutTask } from './launches'
import { groupAt, NONE, type Order } from './order'
import type { AreaOn, HoverSaid, LaunchSaid, OnConfig } from './protocol'
import { areaStats } from './stats'

/** What words are made from. */
export interface Described {
  readonly groups: readonly Group[]
  readonly launches: LaunchColumns | null
  readonly tasks: readonly LayoutTask[]
  readonly streams: readonly number[]
  /** Phase by `rank.step`. */
  readonly phases: ReadonlyMap<string, string>
  readonly baseline: string
  readonly families: readonly string[]
  readonly familyOf: Uint8Array
}

interface Hit {
  readonly lane: GroupLane
  readonly position: number
  readonly row: number
  readonly letter: string
  /** Launches that share the pixel, and their time together. */
  readonly count: number
  readonly busy: number
}

const words = (nanoseconds: number): string => timeWithUnit(ms(nanoseconds / 1e6))

export function stepWords(described: Described, order: Order, group: number): string {
  const step = order.segments.groups[group]
  return step === undefined ? '' : `${described.phases.get(`${step.rank}.${step.step}`) ?? 'step'} ${step.step}`
}

export function hoverSaid(described: Described, hit: Hit, at: { readonly x: number; readonly y: number }): HoverSaid {
  const { lane, position, row } = hit
  const task = described.tasks[lane.order.task[position] ?? 0]
  const duration = lane.duration(position)
  const title = shortKernel(task?.name ?? '')
  const state = lane.isPendingAt(position) ? 'not simulated yet' : duration < 0 ? 'failed' : words(duration)
  const lines =
    hit.count > 1
      ? [`${count(hit.count)} launches in this pixel, ${words(hit.busy)} together`, `longest: ${state}`]
      : [`${state}, starts at ${words(lane.own[position] ?? 0)}`]
  const step = stepWords(described, lane.order, groupAt(lane.order.segments, position))
  const on = onAll(described, row)
  return {
    ...at,
    title,
    family: task?.family ?? 'unknown',
    lines: [...lines, [step, familyShown(task?.family ?? 'unknown').word].filter((word) => word !== '').join(' · ')],
    on: on.filter(({ letter }) => letter !== 'src').map(({ letter, duration: one, ratio }) => ({ letter, duration: one, ratio })),
  }
}

export function launchSaid(described: Described, row: number, letter: string): LaunchSaid | null {
  const { launches, tasks } = described
  if (launches === null || row >= launches.count) return null
  const task = tasks[launches.task[row] ?? 0]
  const step = launches.step[row] ?? -1
  const rank = launches.rank[row] ?? 0
  return {
    row,
    rank,
    seq: launches.seq[row] ?? 0,
    stream: described.streams[launches.stream[row] ?? 0] ?? 0,
    taskId: task?.task_id ?? '',
    name: task?.name ?? '',
    signature: task?.signature ?? '',
    op: task?.op ?? '',
    family: task?.family ?? 'unknown',
    step: step < 0 ? 'outside of every step' : `${described.phases.get(`${rank}.${step}`) ?? 'step'} ${step}`,
    on: onAll(described, row),
    letter,
  }
}

/** One launch on every config, each beside the baseline. */
function onAll(described: Described, row: number): readonly OnConfig[] {
  const all = described.groups.flatMap((group) => onOne(group, row))
  const base = all.find(({ letter }) => letter === described.baseline)?.duration ?? null
  return all.map((one) => ({
    ...one,
    ratio: base === null || base === 0 || one.duration === null || one.letter === described.baseline ? null : one.duration / base,
  }))
}

function onOne(group: Group, row: number): readonly OnConfig[] {
  const found = group.lanes.find((lane) => {
    const position = lane.order.position[row] ?? NONE
    return !lane.isThin && position >= lane.first && position < lane.last
  })
  if (found === undefined) return []
  const position = found.order.position[row] ?? 0
  const task = found.order.task[position] ?? 0
  const at = group.results?.rowOf[task] ?? -1
  const columns = group.results?.columns
  const known = (values: Float64Array | undefined) => {
    const value = at < 0 ? undefined : values?.[at]
    return value === undefined || Number.isNaN(value) ? null : value
  }
  const isFailed = at >= 0 && columns?.isFailed[at] === 1
  const state = group.kind === 'source' ? 'measured' : at < 0 ? 'pending' : isFailed ? 'failed' : 'known'
  return [
    {
      letter: group.said.letter,
      name: group.said.name,
      start: found.own[position] ?? 0,
      duration: state === 'known' || state === 'measured' ? found.duration(position) : null,
      p10: known(columns?.p10),
      p90: known(columns?.p90),
      ratio: null,
      bound: columns?.bound[at] ?? '',
      tier: columns?.tier[at] ?? '',
      reason: columns?.reason[at] ?? '',
      forward: known(columns?.forward),
      roofline: known(columns?.roofline),
      correction: known(columns?.correction),
      state,
    },
  ]
}

/** t0, t1: on the axis. What starts in there on one config, in its own time. */
export function areaOn(described: Described, group: Group, area: { readonly t0: number; readonly t1: number }): AreaOn {
  const lanes = group.lanes.filter(({ isThin }) => !isThin)
  const lane = lanes[0]
  const none: AreaOn = {
    letter: group.said.letter, name: group.said.name, count: 0, pendingCount: 0, busy: 0, gaps: 0, span: 0,
    min: Number.NaN, mean: Number.NaN, p99: Number.NaN, max: Number.NaN, longest: '', ratio: null, families: [],
  }
  if (lane === undefined) return none
  // On the axis a config's time may be stretched; statistics are of its own.
  const stats = areaStats(
    {
      lanes,
      start: lane.start,
      duration: (position) => Math.max(0, lane.duration(position)),
      task: lane.order.task,
      classOf: described.familyOf,
      isPending: lane.isPending,
    },
    area.t0,
    area.t1,
  )
  const span = (area.t1 - area.t0) / group.scale
  return {
    ...none,
    count: stats.count,
    pendingCount: stats.pendingCount,
    busy: stats.busy,
    gaps: group.scale === 1 ? stats.gaps : Math.max(0, span - stats.busy),
    span,
    min: stats.min,
    mean: stats.mean,
    p99: stats.p99,
    max: stats.max,
    longest: stats.argmax < 0 ? '' : shortKernel(described.tasks[lane.order.task[stats.argmax] ?? 0]?.name ?? ''),
    families: [...stats.classes].map(([kind, busy]) => ({ family: described.families[kind] ?? 'unknown', busy })).sort((a, b) => b.busy - a.busy),
  }
}

export function areaSaid(all: readonly AreaOn[], baseline: string): readonly AreaOn[] {
  const base = all.find(({ letter }) => letter === baseline)?.busy ?? 0
  return all.map((one) => ({ ...one, ratio: base > 0 && one.letter !== baseline && one.count > 0 ? one.busy / base : null }))
}
