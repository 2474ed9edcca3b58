import { familyShown } from '../lib/families'
import { alignedSteps, compose, moved, type Composed, type Gaps } from './compose'
import type { LaunchColumns, LayoutTask } from './launches'
import type { Order } from './order'
import type { Alignment, Colour, ConfigSaid } from './protocol'
import { matchLevels, pyramid } from './pyramid'
import type { LaneData } from './raster'
import { BOUNDS, boundClasses, boundTokens, errorClasses, ERRORS, NO_RESULTS, resultsOf, type ResultColumns, type Results } from './results'

/** A lane as it is drawn and asked about. */
export interface GroupLane extends Omit<LaneData, 'matches'> {
  readonly title: string
  readonly rank: number
  readonly isThin: boolean
  readonly order: Order
  /** ns of the group's own time, by position. */
  readonly own: Float64Array
  readonly classOf: Uint8Array
  readonly isPending: Uint8Array
  matches: LaneData['matches']
}

/** All lanes of one config, or of the source as it was measured. */
export interface Group {
  readonly said: ConfigSaid
  readonly kind: 'config' | 'source'
  readonly results: Results | null
  readonly composed: Composed | null
  readonly lanes: readonly GroupLane[]
  /** Begin of each (rank, step) on the axis, by the order's groups; null: its steps are not known. */
  readonly stepBegins: Float64Array | null
  readonly scale: number
  /** End of the last launch on the axis. */
  readonly end: number
}

export interface Sources {
  readonly launches: LaunchColumns
  readonly order: Order
  readonly tasks: readonly LayoutTask[]
  readonly gaps: Gaps
  readonly streams: readonly number[]
  readonly results: ReadonlyMap<string, ResultColumns>
}

/** What the recording itself has. */
export interface SourceOrders {
  readonly measured: Order | null
  readonly host: Order | null
}

/** Colour classes and the tokens they are drawn in. */
export interface Palette {
  readonly tokens: readonly string[]
  readonly familyOf: Uint8Array
  readonly families: readonly string[]
}

export function paletteOf(tasks: readonly LayoutTask[], colour: Colour): Palette {
  const families = [...new Set(tasks.map(({ family }) => family))].slice(0, 31)
  const familyOf = Uint8Array.from(tasks, ({ family }) => Math.max(0, families.indexOf(family)))
  const tokens = colour === 'family' ? families.map((family) => familyShown(family).token) : colour === 'bound' ? boundTokens() : [...ERRORS]
  return { tokens, familyOf, families }
}

export interface Shape {
  readonly configs: readonly ConfigSaid[]
  readonly source: ConfigSaid
  readonly align: Alignment
  readonly colour: Colour
  readonly baseline: string
}

/** A config's place before its lanes are composed: nothing in them yet, and nothing moves when they come. */
export function blankGroup(said: ConfigSaid, order: Order, streams: readonly number[]): Group {
  const none = new Float64Array(0)
  const bytes = new Uint8Array(0)
  const lanes = lanesOf({ ...order, lanes: order.lanes.map((lane) => ({ ...lane, first: 0, last: 0 })) }, streams, {
    own: none, axis: none, scale: 1, byTask: none, byPosition: null, classOf: bytes, isPending: bytes, isThin: false, prefix: '',
  })
  return { said, kind: 'config', results: null, composed: null, lanes, stepBegins: null, scale: 1, end: 0 }
}

/** Every group of a config with its lanes composed, aligned and summed up: all that drawing needs. */
export function configGroups(sources: Sources, shape: Shape, palette: Palette): readonly Group[] {
  const { order, tasks, gaps } = sources
  const standIn = standIns(tasks, sources.results)
  const answers = shape.configs.map((said) => {
    const columns = sources.results.get(said.id)
    const results = columns === undefined ? null : resultsOf(columns, tasks.length, standIn)
    const pending = results ?? resultsOf(NO_RESULTS, tasks.length, standIn)
    return { said, results: pending, composed: compose(order, pending.duration, gaps) }
  })
  const begins = shape.align === 'step' ? alignedSteps(order, answers.map(({ composed }) => composed)) : null
  const columns = shape.align === 'kernel' ? compose(order, longestOf(answers.map(({ results }) => results.duration)), gaps) : null
  const baseline = answers.find(({ said }) => said.letter === shape.baseline) ?? answers[0]
  return answers.map(({ said, results, composed }): Group => {
    const scale = shape.align === 'progress' && composed.total > 0 ? (baseline?.composed.total ?? 0) / composed.total : 1
    const scaled = (times: Float64Array) => (scale === 1 ? times : times.map((time) => time * scale))
    const axis = columns !== null ? columns.start : begins !== null ? moved(order, composed, begins) : scaled(composed.start)
    const lanes = lanesOf(order, sources.streams, {
      own: composed.start,
      axis,
      scale,
      byTask: results.duration,
      byPosition: null,
      classOf: classesOf(shape.colour, results, palette),
      isPending: results.isPending,
      isThin: false,
      prefix: '',
    })
    // In columns a step is as long as its columns together, whatever the config itself takes.
    const steps = columns ?? composed
    const stepBegins = columns?.stepStart ?? begins ?? scaled(composed.stepStart)
    const last = begins === null ? steps.total * scale : Math.max(0, ...composed.stepStart.map((at, step) => (begins[step] ?? 0) + (composed.stepEnd[step] ?? 0) - at))
    return { said, kind: 'config', results, composed: steps, lanes, stepBegins, scale, end: last }
  })
}

/** Per task what it takes where it takes longest. */
function longestOf(durations: readonly Float64Array[]): Float64Array {
  const longest = new Float64Array(durations[0]?.length ?? 0)
  for (const duration of durations) for (let task = 0; task < longest.length; task += 1) longest[task] = Math.max(longest[task] ?? 0, duration[task] ?? 0)
  return longest
}

/** What a task without a result is drawn as long as: as measured, else as on a config that has it. */
function standIns(tasks: readonly LayoutTask[], results: ReadonlyMap<string, ResultColumns>): Float64Array {
  const standIn = Float64Array.from(tasks, ({ measured_ns }) => measured_ns ?? Number.NaN)
  for (const { task, duration } of results.values()) {
    task.forEach((which, row) => {
      if (!((standIn[which] ?? 0) > 0) && (duration[row] ?? 0) > 0) standIn[which] = duration[row] ?? Number.NaN
    })
  }
  return standIn
}

function classesOf(colour: Colour, results: Results, palette: Palette): Uint8Array {
  return colour === 'family' ? palette.familyOf : colour === 'bound' ? boundClasses(results) : errorClasses(results)
}

interface LaneTimes {
  readonly own: Float64Array
  readonly axis: Float64Array
  readonly scale: number
  readonly byTask: Float64Array | null
  readonly byPosition: Float64Array | null
  readonly classOf: Uint8Array
  readonly isPending: Uint8Array
  readonly isThin: boolean
  readonly prefix: string
}

function lanesOf(order: Order, streams: readonly number[], times: LaneTimes): GroupLane[] {
  const { byTask, byPosition, classOf, isPending } = times
  const { task } = order
  const duration = byPosition === null ? (position: number) => byTask?.[task[position] ?? 0] ?? 0 : (position: number) => byPosition[position] ?? 0
  const hasRanks = new Set(order.lanes.map(({ rank }) => rank)).size > 1
  return order.lanes.map(({ rank, stream, first, last }) => ({
    title: `${hasRanks ? `r${rank} ` : ''}${times.prefix === '' ? `stream ${streams[stream] ?? stream}` : times.prefix}`,
    rank,
    isThin: times.isThin,
    order,
    first,
    last,
    own: times.own,
    start: times.axis,
    scale: times.scale,
    duration,
    classOf,
    isPending,
    classAt: (position) => classOf[task[position] ?? 0] ?? 0,
    isPendingAt: (position) => isPending[task[position] ?? 0] === 1,
    levels: pyramid({ order, durationOf: { byTask, byPosition }, classOf, isPending }, first, last),
    matches: null,
  }))
}

/** The recording itself: its streams as they ran, and when the host asked for each launch. */
export function sourceGroup(sources: Sources, orders: SourceOrders, shape: Shape, palette: Palette): Group | null {
  const { launches, tasks } = sources
  const { measured, host } = orders
  if (measured === null && host === null) return null
  const firsts = [measured, host].flatMap((order) => {
    const time = order === measured ? launches.measuredStart : launches.hostStart
    return order?.lanes.map(({ first }) => time?.[order.row[first] ?? 0] ?? Infinity) ?? []
  })
  const zero = Math.min(...firsts)
  const none = new Uint8Array(tasks.length)
  // Colours by bound or error are a config's; the recording has families.
  const classOf = shape.colour === 'family' ? palette.familyOf : new Uint8Array(tasks.length).fill(shape.colour === 'bound' ? BOUNDS.length - 1 : ERRORS.length - 1)
  const timed = (order: Order, time: Float64Array | null) => taken(time, order.row).map((at) => at - zero)
  const lanes: GroupLane[] = []
  if (host !== null) {
    const own = timed(host, launches.hostStart)
    lanes.push(...lanesOf(host, sources.streams, { own, axis: own, scale: 1, byTask: null, byPosition: new Float64Array(own.length), classOf, isPending: none, isThin: true, prefix: 'host asks' }))
  }
  if (measured !== null) {
    const own = timed(measured, launches.measuredStart)
    const byPosition = taken(launches.measuredDuration, measured.row)
    lanes.push(...lanesOf(measured, sources.streams, { own, axis: own, scale: 1, byTask: null, byPosition, classOf, isPending: none, isThin: false, prefix: '' }))
  }
  const end = Math.max(0, ...lanes.map(({ own, last, duration }) => (own[last - 1] ?? 0) + Math.max(0, duration(last - 1))))
  return { said: shape.source, kind: 'source', results: null, composed: null, lanes, stepBegins: null, scale: 1, end }
}

/** A column in the order of some rows. (Typed arrays' own `from` with a function takes ten times as long.) */
function taken(column: Float64Array | null, rows: Uint32Array): Float64Array {
  const found = new Float64Array(rows.length)
  if (column !== null) for (let at = 0; at < rows.length; at += 1) found[at] = column[rows[at] ?? 0] ?? 0
  return found
}

/** Mark what a search finds in every lane; how many launches that are. */
export function mark(groups: readonly Group[], isMatch: Uint8Array | null): number {
  const known = new Map<string, readonly Uint8Array[]>()
  for (const { lanes } of groups) {
    for (const lane of lanes) {
      if (isMatch === null) {
        lane.matches = null
        continue
      }
      const { order, first, last } = lane
      const key = `${first}-${last}-${order.row.length}-${order.segments.groups.length}`
      const levels = known.get(key) ?? matchLevels(order, isMatch, first, last, lane.levels)
      known.set(key, levels)
      lane.matches = { levels, at: (position) => isMatch[order.task[position] ?? 0] === 1 }
    }
  }
  const first = groups[0]
  if (isMatch === null || first === undefined) return 0
  return first.lanes.reduce((sum, { order, first: from, last }) => {
    let found = 0
    for (let position = from; position < last; position += 1) found += isMatch[order.task[position] ?? 0] ?? 0
    return sum + found
  }, 0)
}
