import type { ResultColumns } from '../../canvas/results'

/** A kernel task, or all tasks of a family, with its time on every config. Times in ns of one launch; NaN: not known. */
export interface KernelRow {
  readonly key: string
  readonly name: string
  readonly op: string
  /** What tells kernels of one name apart. */
  readonly shape: string
  readonly family: string
  readonly taskId: string | null
  readonly launchCount: number
  readonly measured: number
  readonly cells: readonly KernelCell[]
  /** Time in each part of the trace's steps on the base config; empty where not known. */
  readonly trend: readonly number[]
  readonly flop: number
  readonly movedBytes: number
}

export interface KernelCell {
  readonly duration: number
  readonly p10: number
  readonly p90: number
  readonly forward: number
  readonly roofline: number
  readonly total: number
  readonly bound: string
  readonly reason: string
  readonly isFailed: boolean
}

export interface LaidOutTask {
  readonly index: number
  readonly task_id: string
  readonly name: string
  readonly op: string
  readonly shape?: string
  readonly family: string
  readonly launch_count: number
  readonly measured_ns: number | null
}

export interface Profile {
  readonly task: ArrayLike<number>
  readonly bin: ArrayLike<number>
  readonly count: ArrayLike<number>
}

export interface Work {
  readonly flop: ArrayLike<number>
  readonly movedBytes: ArrayLike<number>
}

export const PROFILE_BINS = 48

const UNKNOWN: KernelCell = {
  duration: Number.NaN,
  p10: Number.NaN,
  p90: Number.NaN,
  forward: Number.NaN,
  roofline: Number.NaN,
  total: Number.NaN,
  bound: '',
  reason: '',
  isFailed: false,
}

/** One row per task, in the order of the layout. base: the config whose trend is drawn. */
export function taskRows(
  tasks: readonly LaidOutTask[],
  results: readonly (ResultColumns | null)[],
  base: number,
  profile: Profile | null,
  work: Work | null,
): readonly KernelRow[] {
  const cells = results.map((columns) => cellsByTask(columns, tasks))
  const counts = new Map<number, number[]>()
  if (profile !== null) {
    for (let row = 0; row < profile.task.length; row += 1) {
      const task = profile.task[row] ?? 0
      const bins = counts.get(task) ?? new Array<number>(PROFILE_BINS).fill(0)
      bins[profile.bin[row] ?? 0] = profile.count[row] ?? 0
      counts.set(task, bins)
    }
  }
  return tasks.map((task) => {
    const duration = cells[base]?.[task.index]?.duration ?? Number.NaN
    return {
      key: task.task_id,
      taskId: task.task_id,
      name: task.name,
      op: task.op,
      shape: task.shape ?? '',
      family: task.family,
      launchCount: task.launch_count,
      measured: task.measured_ns ?? Number.NaN,
      cells: cells.map((ofConfig) => ofConfig[task.index] ?? UNKNOWN),
      trend: Number.isNaN(duration) ? [] : (counts.get(task.index) ?? []).map((count) => count * duration),
      flop: work?.flop[task.index] ?? Number.NaN,
      movedBytes: work?.movedBytes[task.index] ?? Number.NaN,
    }
  })
}

function cellsByTask(columns: ResultColumns | null, tasks: readonly LaidOutTask[]): readonly KernelCell[] {
  const cells = new Array<KernelCell>(tasks.length).fill(UNKNOWN)
  columns?.task.forEach((task, row) => {
    const duration = columns.duration[row] ?? Number.NaN
    cells[task] = {
      duration,
      p10: columns.p10[row] ?? Number.NaN,
      p90: columns.p90[row] ?? Number.NaN,
      forward: columns.forward[row] ?? Number.NaN,
      roofline: columns.roofline[row] ?? Number.NaN,
      total: duration * (tasks[task]?.launch_count ?? 0),
      bound: columns.bound[row] ?? '',
      reason: columns.reason[row] ?? '',
      isFailed: columns.isFailed[row] === 1,
    }
  })
  return cells
}

/** Tasks of a family taken together: sums over all launches, the bound that most of the time waits for. */
export function familyRows(rows: readonly KernelRow[]): readonly KernelRow[] {
  const groups = new Map<string, KernelRow[]>()
  for (const row of rows) groups.set(row.family, [...(groups.get(row.family) ?? []), row])
  return [...groups].map(([family, members]) => {
    const sum = (of: (row: KernelRow) => number) =>
      members.reduce((total, row) => total + (Number.isNaN(of(row)) ? 0 : of(row)), 0)
    const launchCount = sum((row) => row.launchCount)
    const configs = members[0]?.cells.length ?? 0
    return {
      key: family,
      taskId: null,
      name: family,
      op: '',
      shape: '',
      family,
      launchCount,
      measured: sum((row) => row.measured * row.launchCount) / launchCount || Number.NaN,
      cells: Array.from({ length: configs }, (_, config) => familyCell(members, config, launchCount)),
      trend: Array.from({ length: PROFILE_BINS }, (_, bin) => sum((row) => row.trend[bin] ?? 0)),
      flop: sum((row) => row.flop * row.launchCount) / launchCount,
      movedBytes: sum((row) => row.movedBytes * row.launchCount) / launchCount,
    }
  })
}

function familyCell(members: readonly KernelRow[], config: number, launchCount: number): KernelCell {
  const known = members.filter((row) => !Number.isNaN(row.cells[config]?.total ?? Number.NaN))
  if (known.length === 0) return UNKNOWN
  const sum = (of: (cell: KernelCell) => number) =>
    known.reduce((total, row) => total + of(row.cells[config] ?? UNKNOWN) * row.launchCount, 0)
  const total = sum((cell) => cell.duration)
  const byBound = new Map<string, number>()
  for (const row of known) {
    const cell = row.cells[config] ?? UNKNOWN
    byBound.set(cell.bound, (byBound.get(cell.bound) ?? 0) + cell.total)
  }
  const bound = [...byBound].reduce<readonly [string, number]>((most, one) => (one[1] > most[1] ? one : most), ['', -1])[0]
  return {
    duration: total / launchCount,
    p10: sum((cell) => cell.p10) / launchCount,
    p90: sum((cell) => cell.p90) / launchCount,
    forward: sum((cell) => cell.forward) / launchCount,
    roofline: sum((cell) => cell.roofline) / launchCount,
    total,
    bound,
    reason: '',
    isFailed: known.length < members.length,
  }
}

/** Share of a config's whole time per row, and the sum of the shares of all longer ones; by key. */
export function shares(rows: readonly KernelRow[], config: number): ReadonlyMap<string, { readonly share: number; readonly cumulative: number }> {
  const total = (row: KernelRow) => {
    const found = row.cells[config]?.total ?? Number.NaN
    return Number.isNaN(found) ? 0 : found
  }
  const whole = rows.reduce((sum, row) => sum + total(row), 0)
  let before = 0
  const found = new Map<string, { share: number; cumulative: number }>()
  for (const row of [...rows].sort((a, b) => total(b) - total(a))) {
    before += total(row)
    found.set(row.key, { share: whole > 0 ? total(row) / whole : 0, cumulative: whole > 0 ? before / whole : 0 })
  }
  return found
}

/** How many of the longest rows make up this share of the time. */
export function countFor(rows: readonly KernelRow[], config: number, wanted: number): number {
  const reached = [...shares(rows, config).values()].map(({ cumulative }) => cumulative)
  const at = reached.findIndex((cumulative) => cumulative >= wanted - 1e-9)
  return at < 0 ? reached.length : at + 1
}

/** Of the forward prediction where something was measured; NaN elsewhere. */
export const errorOf = (row: KernelRow, source: number): number =>
  source < 0 ? Number.NaN : ((row.cells[source]?.forward ?? Number.NaN) - row.measured) / row.measured

/** Without return type, namespaces and template arguments, which a column would repeat; the whole name is one hover away. */
export function shortKernel(name: string): string {
  let depth = 0
  let kept = ''
  for (const letter of name.replace(/^void\s+/, '')) {
    if (letter === '<') depth += 1
    if (depth === 0) kept += letter
    if (letter === '>') depth = Math.max(0, depth - 1)
  }
  const plain = kept.replace(/\(.*$/, '')
  const last = plain.split('::').filter(Boolean).at(-1) ?? plain
  const template = /<(.*)>/.exec(name)?.[1] ?? ''
  return template !== '' && last.length < 24 ? `${last}<${template.length > 40 ? `${template.slice(0, 39)}…` : template}>` : last
}
