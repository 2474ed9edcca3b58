/** What the server says of a trace as a whole. */
export interface Layout {
  readonly launches: number
  readonly is_complete: boolean
  readonly gaps: { readonly graph_ns: number; readonly eager_ns: number }
  readonly tasks: readonly LayoutTask[]
  readonly steps: readonly LayoutStep[]
  readonly ranks: readonly number[]
  readonly streams: readonly number[]
}

export interface LayoutTask {
  readonly index: number
  readonly task_id: string
  readonly signature: string
  readonly name: string
  readonly op: string
  readonly family: string
  readonly launch_count: number
  readonly measured_ns: number | null
}

export interface LayoutStep {
  readonly rank: number
  readonly step: number
  readonly phase: string
  readonly context_tokens: number
  readonly generation_tokens: number
  readonly requests: number
}

/** A trace's launches, row by row in order of (rank, seq); the same for every config. */
export interface LaunchColumns {
  readonly count: number
  readonly rank: Uint16Array
  readonly seq: Uint32Array
  readonly task: Uint32Array
  /** Index into the layout's streams. */
  readonly stream: Uint16Array
  /** -1: outside every step. */
  readonly step: Int32Array
  /** 1: launched by a graph. */
  readonly graph: Uint8Array
  /** ns of the source's clock; null where no launch has one. */
  readonly hostStart: Float64Array | null
  readonly measuredStart: Float64Array | null
  readonly measuredDuration: Float64Array | null
}

/** Columns that grow page by page and never move what they hold. */
export class GrowingLaunches {
  #columns = room(0)
  #count = 0
  #hasHost = false
  #hasMeasured = false

  get count(): number {
    return this.#count
  }

  clear(): void {
    this.#count = 0
    this.#hasHost = false
    this.#hasMeasured = false
  }

  /** Make room once for what is known to come. */
  reserve(count: number): void {
    if (count <= this.#columns.rank.length) return
    const larger = room(count)
    for (const name of NAMES) larger[name].set(this.#columns[name].subarray(0, this.#count))
    this.#columns = larger
  }

  append(page: LaunchColumns): void {
    const end = this.#count + page.count
    if (end > this.#columns.rank.length) this.reserve(Math.max(end, Math.ceil(this.#columns.rank.length * 1.5)))
    for (const name of NAMES) {
      const from = page[name]
      if (from === null) (this.#columns[name] as Float64Array).fill(Number.NaN, this.#count, end)
      else this.#columns[name].set(from, this.#count)
    }
    this.#hasHost ||= page.hostStart?.some((value) => !Number.isNaN(value)) ?? false
    this.#hasMeasured ||= page.measuredDuration?.some((value) => value >= 0) ?? false
    this.#count = end
  }

  columns(): LaunchColumns {
    const all = this.#columns
    const count = this.#count
    return {
      count,
      rank: all.rank.subarray(0, count),
      seq: all.seq.subarray(0, count),
      task: all.task.subarray(0, count),
      stream: all.stream.subarray(0, count),
      step: all.step.subarray(0, count),
      graph: all.graph.subarray(0, count),
      hostStart: this.#hasHost ? all.hostStart.subarray(0, count) : null,
      measuredStart: this.#hasMeasured ? all.measuredStart.subarray(0, count) : null,
      measuredDuration: this.#hasMeasured ? all.measuredDuration.subarray(0, count) : null,
    }
  }
}

const NAMES = ['rank', 'seq', 'task', 'stream', 'step', 'graph', 'hostStart', 'measuredStart', 'measuredDuration'] as const

const room = (count: number) => ({
  rank: new Uint16Array(count),
  seq: new Uint32Array(count),
  task: new Uint32Array(count),
  stream: new Uint16Array(count),
  step: new Int32Array(count),
  graph: new Uint8Array(count),
  hostStart: new Float64Array(count),
  measuredStart: new Float64Array(count),
  measuredDuration: new Float64Array(count),
})
