import type { Order } from './order'

/** Launches per bucket of the finest level; each level's buckets hold four times as many as those of the one below. */
export const FINEST = 16
export const STEP = 4

/**
 * A lane at coarser and coarser levels. What is drawn from it hides nothing: a bucket knows how many launches it has, how
 * long they are together, the longest of them and which one that is, and the class most of the time goes to.
 */
export interface Level {
  readonly size: number
  readonly busy: Float64Array
  readonly longest: Float32Array
  /** Position of the longest launch. */
  readonly argmax: Uint32Array
  /** Class (colour) with the most time. */
  readonly dominant: Uint8Array
  /** Share of launches not simulated yet, 0 to 255. */
  readonly pending: Uint8Array
}

export interface PyramidInput {
  readonly order: Order
  /** ns per task, or per position where measured. */
  readonly durationOf: DurationOf
  /** Colour class per task, below 32. */
  readonly classOf: Uint8Array
  /** 1: this task has no result yet. */
  readonly isPending: Uint8Array
}

export interface DurationOf {
  readonly byTask: Float64Array | null
  readonly byPosition: Float64Array | null
}

export const CLASSES = 32

/** All levels of one lane, finest first. Launches are looked at once; coarser levels add up those below. */
export function pyramid(input: PyramidInput, first: number, last: number): readonly Level[] {
  const kinds = 1 + input.classOf.reduce((most, kind) => Math.max(most, kind), 0)
  let { level, classes } = fromLaunches(input, first, last, kinds)
  const levels = [level]
  while ((last - first) / level.size > 1) {
    ;({ level, classes } = fromBelow(level, classes, kinds))
    levels.push(level)
  }
  return levels
}

function emptyLevel(size: number, count: number): Level {
  return {
    size,
    busy: new Float64Array(count),
    longest: new Float32Array(count),
    argmax: new Uint32Array(count),
    dominant: new Uint8Array(count),
    pending: new Uint8Array(count),
  }
}

interface Summed {
  readonly level: Level
  /** Time of each class in each bucket: with it coarser buckets add up exactly. */
  readonly classes: Float64Array
}

function fromLaunches(input: PyramidInput, first: number, last: number, kinds: number): Summed {
  const { order, durationOf, classOf, isPending } = input
  const { task } = order
  const { byPosition } = durationOf
  const byTask = durationOf.byTask ?? new Float64Array(classOf.length)
  const count = Math.ceil((last - first) / FINEST)
  const level = emptyLevel(FINEST, count)
  const classes = new Float64Array(count * kinds)
  for (let bucket = 0; bucket < count; bucket += 1) {
    const from = first + bucket * FINEST
    const to = Math.min(last, from + FINEST)
    const sums = bucket * kinds
    let [busy, longest, argmax, waiting] = [0, -1, from, 0]
    for (let position = from; position < to; position += 1) {
      const which = task[position] ?? 0
      const raw = (byPosition === null ? byTask[which] : byPosition[position]) ?? 0
      const duration = raw > 0 ? raw : 0
      busy += duration
      const at = sums + (classOf[which] ?? 0)
      classes[at] = (classes[at] ?? 0) + duration
      if (duration > longest) {
        longest = duration
        argmax = position
      }
      waiting += isPending[which] ?? 0
    }
    level.busy[bucket] = busy
    level.longest[bucket] = longest
    level.argmax[bucket] = argmax
    level.dominant[bucket] = largest(classes, sums, kinds)
    level.pending[bucket] = Math.round((255 * waiting) / (to - from))
  }
  return { level, classes }
}

function fromBelow(below: Level, classesBelow: Float64Array, kinds: number): Summed {
  const count = Math.ceil(below.busy.length / STEP)
  const level = emptyLevel(below.size * STEP, count)
  const classes = new Float64Array(count * kinds)
  for (let bucket = 0; bucket < count; bucket += 1) {
    const from = bucket * STEP
    const to = Math.min(below.busy.length, from + STEP)
    let [busy, longest, argmax, waiting] = [0, -1, 0, 0]
    for (let child = from; child < to; child += 1) {
      busy += below.busy[child] ?? 0
      if ((below.longest[child] ?? 0) > longest) {
        longest = below.longest[child] ?? 0
        argmax = below.argmax[child] ?? 0
      }
      waiting += below.pending[child] ?? 0
      for (let kind = 0; kind < kinds; kind += 1) {
        const at = bucket * kinds + kind
        classes[at] = (classes[at] ?? 0) + (classesBelow[child * kinds + kind] ?? 0)
      }
    }
    level.busy[bucket] = busy
    level.longest[bucket] = longest
    level.argmax[bucket] = argmax
    level.dominant[bucket] = largest(classes, bucket * kinds, kinds)
    level.pending[bucket] = Math.round(waiting / (to - from))
  }
  return { level, classes }
}

function largest(sums: Float64Array, offset: number, kinds: number): number {
  let best = 0
  for (let kind = 1; kind < kinds; kind += 1) if ((sums[offset + kind] ?? 0) > (sums[offset + best] ?? 0)) best = kind
  return best
}

/** The coarsest level that still has a bucket a pixel, so that one is walked at most four times; null: the launches themselves. */
export function levelFor(levels: readonly Level[], launchesPerPixel: number): Level | null {
  return levels.findLast(({ size }) => size <= launchesPerPixel) ?? null
}

/** Share of launches that match, per bucket and level; shared by all configs, whose positions are the same. */
export function matchLevels(order: Order, isMatch: Uint8Array, first: number, last: number, levels: readonly Level[]): readonly Uint8Array[] {
  return levels.map(({ size, busy }) => {
    const found = new Uint8Array(busy.length)
    for (let bucket = 0; bucket < busy.length; bucket += 1) {
      const to = Math.min(last, first + (bucket + 1) * size)
      for (let position = first + bucket * size; position < to; position += 1) {
        if (isMatch[order.task[position] ?? 0] === 1) {
          found[bucket] = 1
          break
        }
      }
    }
    return found
  })
}
