import { CLASSES, levelFor, type Level } from './pyramid'

/** One lane of one config, as it is to be drawn: times on the shared axis. */
export interface LaneData {
  readonly first: number
  readonly last: number
  /** By position, in ns on the axis. */
  readonly start: Float64Array
  readonly duration: (position: number) => number
  /** What a ns of the config is on the axis; 1 but where lanes are aligned by progress. */
  readonly scale: number
  readonly classAt: (position: number) => number
  readonly isPendingAt: (position: number) => boolean
  readonly levels: readonly Level[]
  /** Matches of the search, per level and by position; null: nothing is searched. */
  readonly matches: { readonly levels: readonly Uint8Array[]; readonly at: (position: number) => boolean } | null
}

/** A lane's pixels of one frame, one column each. */
export interface Row {
  readonly width: number
  /** Class of each column; CLASSES: nothing there. */
  readonly kind: Uint8Array
  /** Share of the column's time in which something runs, 0 to 1. */
  readonly share: Float32Array
  /** Longest launch that touches the column, ns. */
  readonly longest: Float32Array
  /** Class of the longest one. */
  readonly longestKind: Uint8Array
  readonly pending: Float32Array
  readonly match: Uint8Array
  /** Launches wide enough for a label: position, x, width. */
  readonly labels: { readonly position: number; readonly x: number; readonly width: number }[]
  /** 1: the column ends a launch drawn alone, so a line parts it from its neighbour. */
  readonly edge: Uint8Array
  /** Launches in view. */
  count: number
  /** Whether launches are drawn one by one. */
  isExact: boolean
}

export const LABEL_PX = 36
const LABELS_MAX = 600
const EDGE_PX = 3

export function emptyRow(width: number): Row {
  return {
    width,
    kind: new Uint8Array(width),
    share: new Float32Array(width),
    longest: new Float32Array(width),
    longestKind: new Uint8Array(width),
    pending: new Float32Array(width),
    match: new Uint8Array(width),
    labels: [],
    edge: new Uint8Array(width),
    count: 0,
    isExact: true,
  }
}

const sums = new Float64Array(CLASSES)

/** Fill a row with what a lane shows between t0 and t1. Buckets or launches are walked once, from left to right. */
export function rasterise(row: Row, lane: LaneData, t0: number, t1: number): void {
  row.kind.fill(CLASSES)
  row.share.fill(0)
  row.longest.fill(0)
  row.pending.fill(0)
  row.match.fill(0)
  row.edge.fill(0)
  row.labels.length = 0
  const { start, first, last, scale } = lane
  const k = row.width / (t1 - t0)
  const from = Math.max(first, firstAfter(start, first, last, t0) - 1)
  const to = firstAfter(start, from, last, t1)
  row.count = to - from
  const level = levelFor(lane.levels, row.count / row.width)
  row.isExact = level === null
  const pen = new Pen(row)
  if (level === null) {
    for (let position = from; position < to; position += 1) {
      const x = ((start[position] ?? 0) - t0) * k
      const duration = lane.duration(position)
      const width = (duration > 0 ? duration : 0) * scale * k
      if (x + width <= 0 && width > 0) continue
      const kind = lane.classAt(position)
      pen.span(x, x + width, width, kind, duration, kind, lane.isPendingAt(position) ? 1 : 0, lane.matches?.at(position) ? 1 : 0)
      if (width >= EDGE_PX) row.edge[Math.min(row.width - 1, Math.max(0, Math.ceil(x + width) - 1))] = x + width < row.width ? 1 : 0
      if (width >= LABEL_PX && row.labels.length < LABELS_MAX) row.labels.push({ position, x, width })
    }
  } else {
    const matched = lane.matches?.levels[lane.levels.indexOf(level)]
    const firstBucket = Math.floor((from - first) / level.size)
    const lastBucket = Math.ceil((to - first) / level.size)
    for (let bucket = firstBucket; bucket < lastBucket; bucket += 1) {
      const begin = first + bucket * level.size
      const end = Math.min(last, begin + level.size) - 1
      const x = ((start[begin] ?? 0) - t0) * k
      const tail = lane.duration(end)
      const right = ((start[end] ?? 0) + (tail > 0 ? tail : 0) * scale - t0) * k
      const argmax = level.argmax[bucket] ?? begin
      const longest = level.longest[bucket] ?? 0
      const busy = (level.busy[bucket] ?? 0) * scale * k
      pen.span(x, right, busy, level.dominant[bucket] ?? 0, 0, 0, (level.pending[bucket] ?? 0) / 255, matched?.[bucket] ?? 0)
      pen.peak(((start[argmax] ?? 0) - t0) * k, longest * scale * k, longest, lane.classAt(argmax))
    }
  }
  pen.finish()
}

/** Gathers what falls into each pixel column; spans come in order of their left end. */
class Pen {
  #x = -1
  #covered = 0
  constructor(readonly row: Row) {
    sums.fill(0)
  }

  /** busy: pixels' worth of time within [x0, x1). */
  span(x0: number, x1: number, busy: number, kind: number, longest: number, longestKind: number, pending: number, match: number): void {
    const { row } = this
    const right = Math.max(x1, x0 + 1e-6)
    const density = Math.min(1, busy / (right - x0))
    const firstPx = Math.max(0, Math.floor(x0))
    const lastPx = Math.min(row.width - 1, Math.ceil(right) - 1)
    for (let px = firstPx; px <= lastPx; px += 1) {
      if (px > this.#x) this.#turn(px)
      const cover = Math.max(Math.min(right, px + 1) - Math.max(x0, px), 0) * density
      if (px === this.#x) {
        // A launch too short for any colour still makes its column not empty.
        sums[kind] = (sums[kind] ?? 0) + cover + 1e-9
        this.#covered += cover + 1e-9
      }
      if (longest > (row.longest[px] ?? 0)) {
        row.longest[px] = longest
        row.longestKind[px] = longestKind
      }
      if (pending > (row.pending[px] ?? 0)) row.pending[px] = pending
      if (match > 0) row.match[px] = 1
    }
  }

  /** The longest launch of a bucket, where it is. */
  peak(x: number, width: number, longest: number, kind: number): void {
    const { row } = this
    const lastPx = Math.min(row.width - 1, Math.ceil(x + Math.max(width, 1e-6)) - 1)
    for (let px = Math.max(0, Math.floor(x)); px <= lastPx; px += 1) {
      if (longest > (row.longest[px] ?? 0)) {
        row.longest[px] = longest
        row.longestKind[px] = kind
      }
    }
  }

  finish(): void {
    this.#turn(-1)
  }

  #turn(px: number): void {
    if (this.#x >= 0 && this.#covered > 0) {
      let best = 0
      for (let kind = 1; kind < CLASSES; kind += 1) if ((sums[kind] ?? 0) > (sums[best] ?? 0)) best = kind
      this.row.kind[this.#x] = best
      this.row.share[this.#x] = Math.min(1, this.#covered)
    }
    sums.fill(0)
    this.#covered = 0
    this.#x = px
  }
}

/** First position in [first, last) that starts after a time. */
export function firstAfter(start: Float64Array, first: number, last: number, time: number): number {
  let [low, high] = [first, last]
  while (low < high) {
    const middle = (low + high) >> 1
    if ((start[middle] ?? 0) <= time) low = middle + 1
    else high = middle
  }
  return low
}
