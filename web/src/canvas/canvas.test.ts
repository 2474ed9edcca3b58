import { describe, expect, it } from 'vitest'
import { between, fitted, panned, ticks, timeAt, xAt, zoomedAt } from './camera'
import { compose } from './compose'
import { configGroups, paletteOf } from './groups'
import { Advances, shortKernel } from './labels'
import { GrowingLaunches, type LaunchColumns } from './launches'
import { groupAt, NONE, stepOrder, type Order } from './order'
import { FINEST, levelFor, matchLevels, pyramid, STEP } from './pyramid'
import { emptyRow, rasterise, type LaneData } from './raster'
import { errorClasses, NO_RESULTS, resultsOf } from './results'
import { pinnedScene, placeAt, scene } from './scene'
import { areaStats } from './stats'

/** The same numbers every time: a failure can be looked at again. */
function chance(seed: number): () => number {
  let state = seed
  return () => {
    state = (state * 1_664_525 + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}

function trace(seed: number, count: number, { ranks = 1, streams = 1, steps = 10, tasks = 40 } = {}): LaunchColumns {
  const random = chance(seed)
  const rank = Uint16Array.from({ length: count }, (_, row) => Math.floor((row * ranks) / count))
  return {
    count,
    rank,
    seq: Uint32Array.from(rank.keys()),
    task: Uint32Array.from({ length: count }, () => Math.floor(random() * tasks)),
    stream: Uint16Array.from({ length: count }, () => Math.floor(random() * streams)),
    step: Int32Array.from({ length: count }, (_, row) => (random() < 0.02 ? -1 : Math.floor((row * steps) / count))),
    graph: Uint8Array.from({ length: count }, () => (random() < 0.5 ? 1 : 0)),
    hostStart: null,
    measuredStart: null,
    measuredDuration: null,
  }
}

const durationsOf = (seed: number, tasks = 40): Float64Array => {
  const random = chance(seed)
  return Float64Array.from({ length: tasks }, () => Math.floor(100 + random() ** 4 * 100_000))
}

const GAPS = { graph_ns: 1000, eager_ns: 3000 }

function laneOf(order: Order, durations: Float64Array): LaneData {
  const composed = compose(order, durations, GAPS)
  const classOf = Uint8Array.from(durations, (_, task) => task % 5)
  const isPending = new Uint8Array(durations.length)
  const lane = order.lanes[0]
  if (lane === undefined) throw new Error('no lane')
  return {
    first: lane.first,
    last: lane.last,
    start: composed.start,
    duration: (position) => durations[order.task[position] ?? 0] ?? 0,
    scale: 1,
    classAt: (position) => classOf[order.task[position] ?? 0] ?? 0,
    isPendingAt: () => false,
    levels: pyramid({ order, durationOf: { byTask: durations, byPosition: null }, classOf, isPending }, lane.first, lane.last),
    matches: null,
  }
}

describe('order', () => {
  it.each([1, 2, 3])('has each launch of a step once, and none outside of steps (%i)', (seed) => {
    const launches = trace(seed, 5_000, { ranks: 3, streams: 4 })
    const order = stepOrder(launches)
    const inside = [...launches.step.keys()].filter((row) => (launches.step[row] ?? -1) >= 0)
    expect([...order.row].sort((a, b) => a - b)).toEqual(inside)
    order.row.forEach((row, position) => expect(order.position[row]).toBe(position))
    launches.step.forEach((step, row) => {
      if (step < 0) expect(order.position[row]).toBe(NONE)
    })
  })

  it('knows the step of every position', () => {
    const launches = trace(4, 3_000, { ranks: 2, streams: 3 })
    const order = stepOrder(launches)
    order.row.forEach((row, position) => {
      expect(order.segments.groups[groupAt(order.segments, position)]).toEqual({ rank: launches.rank[row], step: launches.step[row] })
    })
  })

  it('grows without moving what is there', () => {
    const whole = trace(5, 1_000)
    const growing = new GrowingLaunches()
    for (let from = 0; from < whole.count; from += 300) {
      const to = Math.min(whole.count, from + 300)
      const part = (values: unknown) => (values as Uint32Array).subarray(from, to)
      growing.append({ ...whole, count: to - from, rank: part(whole.rank) as unknown as Uint16Array, seq: part(whole.seq), task: part(whole.task), stream: part(whole.stream) as unknown as Uint16Array, step: part(whole.step) as unknown as Int32Array, graph: part(whole.graph) as unknown as Uint8Array })
    }
    expect(growing.columns()).toEqual(whole)
  })
})

describe('pyramid', () => {
  const order = stepOrder(trace(6, 20_000))
  const durations = durationsOf(7)
  const lane = laneOf(order, durations)
  const total = lane.last - lane.first

  it('keeps at every level the longest launch, which one it is, and all of the time', () => {
    const all = Array.from({ length: total }, (_, at) => lane.duration(lane.first + at))
    const sum = all.reduce((a, b) => a + b, 0)
    const most = Math.max(...all)
    lane.levels.forEach((level, at) => {
      expect(level.size).toBe(FINEST * STEP ** at)
      expect(level.busy.length).toBe(Math.ceil(total / level.size))
      expect(level.busy.reduce((a, b) => a + b, 0)).toBeCloseTo(sum, 3)
      expect(Math.max(...level.longest)).toBe(most)
      level.argmax.forEach((position, bucket) => {
        expect(lane.duration(position)).toBe(level.longest[bucket])
        expect(position).toBeGreaterThanOrEqual(lane.first + bucket * level.size)
        expect(position).toBeLessThan(lane.first + (bucket + 1) * level.size)
      })
    })
  })

  it('names at every level the class that most of the time goes to', () => {
    for (const level of lane.levels) {
      level.dominant.forEach((dominant, bucket) => {
        const sums = new Map<number, number>()
        for (let position = lane.first + bucket * level.size; position < Math.min(lane.last, lane.first + (bucket + 1) * level.size); position += 1) {
          sums.set(lane.classAt(position), (sums.get(lane.classAt(position)) ?? 0) + lane.duration(position))
        }
        expect(sums.get(dominant)).toBeCloseTo(Math.max(...sums.values()), 3)
      })
    }
  })

  it('is read as coarsely as a bucket a pixel allows', () => {
    expect(levelFor(lane.levels, 1)).toBeNull()
    expect(levelFor(lane.levels, 15)).toBeNull()
    expect(levelFor(lane.levels, 16)?.size).toBe(16)
    expect(levelFor(lane.levels, 700)?.size).toBe(256)
  })

  it('finds what is searched at every level', () => {
    const isMatch = Uint8Array.from(durations, (_, task) => (task === 3 ? 1 : 0))
    const found = matchLevels(order, isMatch, lane.first, lane.last, lane.levels)
    found.forEach((buckets, at) => {
      const size = lane.levels[at]?.size ?? 1
      buckets.forEach((isIn, bucket) => {
        const has = [...order.task.subarray(lane.first + bucket * size, Math.min(lane.last, lane.first + (bucket + 1) * size))].includes(3)
        expect(isIn === 1).toBe(has)
      })
    })
  })
})

describe('raster', () => {
  it('shows one long launch among thousands of short ones, however far one is away', () => {
    const count = 60_000
    const launches = trace(8, count, { tasks: 2 })
    launches.task.fill(0)
    launches.step.fill(0)
    launches.task[count / 2] = 1
    const lane = laneOf(stepOrder(launches), Float64Array.from([2_000, 5_000_000]))
    const end = (lane.start[lane.last - 1] ?? 0) + 2_000
    const row = emptyRow(1200)
    rasterise(row, lane, 0, end)
    expect(row.isExact).toBe(false)
    expect(row.count).toBe(count)
    expect(Math.max(...row.longest)).toBe(5_000_000)
    expect(row.longest.indexOf(5_000_000)).toBe(Math.floor(((lane.start[count / 2] ?? 0) / end) * 1200))
  })

  it('draws the same time, whichever level it is read from', () => {
    const lane = laneOf(stepOrder(trace(9, 30_000)), durationsOf(10))
    const end = lane.start[lane.last - 1] ?? 0
    const [coarse, exact] = [emptyRow(500), emptyRow(500)]
    rasterise(coarse, lane, 0, end)
    rasterise(exact, { ...lane, levels: [] }, 0, end)
    const sum = (values: Float32Array) => values.reduce((a, b) => a + b, 0)
    expect(Math.abs(sum(coarse.share) / sum(exact.share) - 1)).toBeLessThan(0.01)
    exact.kind.forEach((kind, px) => expect(kind === 32).toBe(coarse.kind[px] === 32))
  })

  it('labels what is wide enough, and hits where it draws', () => {
    const lane = laneOf(stepOrder(trace(11, 50, { steps: 1 })), durationsOf(12))
    const row = emptyRow(800)
    const [t0, t1] = [lane.start[10] ?? 0, lane.start[14] ?? 0]
    rasterise(row, lane, t0, t1)
    expect(row.isExact).toBe(true)
    for (const { position, x, width } of row.labels) {
      expect(x).toBeCloseTo((((lane.start[position] ?? 0) - t0) / (t1 - t0)) * 800, 6)
      expect(width).toBeGreaterThanOrEqual(36)
    }
    const widest = row.labels.find(({ position }) => position >= 10 && position < 14)
    if (widest !== undefined) expect(row.kind[Math.floor(widest.x + widest.width / 2)]).toBe(lane.classAt(widest.position))
  })
})

describe('camera', () => {
  const width = 1000
  it.each([
    [0, 0.5],
    [333, 1.7],
    [999, 0.01],
  ])('keeps the time under the pointer under it (x %i, factor %d)', (x, factor) => {
    const camera = { t0: 1e6, t1: 9e6 }
    const zoomed = zoomedAt(camera, width, x, factor, 1e7)
    expect(xAt(zoomed, width, timeAt(camera, width, x))).toBeCloseTo(x, 3)
  })

  it('comes no closer than sense allows and is never lost', () => {
    let camera = { t0: 0, t1: 1e9 }
    for (let turn = 0; turn < 200; turn += 1) camera = zoomedAt(camera, width, 500, 0.5, 1e9)
    expect(camera.t1 - camera.t0).toBeCloseTo(16)
    for (let turn = 0; turn < 100; turn += 1) camera = panned(camera, width, 1e12, 1e9)
    expect(camera.t0).toBeLessThanOrEqual(1e9)
    for (let turn = 0; turn < 100; turn += 1) camera = zoomedAt(camera, width, 10, 3, 1e9)
    expect(camera.t1 - camera.t0).toBeLessThanOrEqual(2e9)
  })

  it('moves from one view to another without a jump at either end', () => {
    const [from, to] = [fitted(0, 1e9), fitted(5e8, 5.001e8)]
    expect(between(from, to, 0).t0).toBeCloseTo(from.t0, 0)
    expect(between(from, to, 0).t1).toBeCloseTo(from.t1, 0)
    expect(between(from, to, 1)).toEqual(to)
    expect(between(from, to, 0.999).t0).toBeCloseTo(to.t0, -3)
  })

  it('has ticks at 1, 2 or 5 times a power of ten, far enough apart', () => {
    for (const span of [16, 999, 12_345, 7e6, 3.3e9]) {
      const { every, times } = ticks({ t0: 0, t1: span }, width)
      expect([1, 2, 5]).toContain(Math.round(every / 10 ** Math.floor(Math.log10(every) + 1e-9)))
      expect((every / span) * width).toBeGreaterThanOrEqual(96)
      expect(times.length).toBeGreaterThan(1)
    }
  })
})

describe('statistics of an area', () => {
  it('equal those counted one by one', () => {
    const launches = trace(13, 4_000, { streams: 3 })
    const order = stepOrder(launches)
    const durations = durationsOf(14)
    const { start, total } = compose(order, durations, GAPS)
    const duration = (position: number) => durations[order.task[position] ?? 0] ?? 0
    const classOf = Uint8Array.from(durations, (_, task) => task % 4)
    const isPending = Uint8Array.from(durations, (_, task) => (task === 5 ? 1 : 0))
    const [t0, t1] = [Math.round(total * 0.2), Math.round(total * 0.61)]
    const stats = areaStats({ lanes: order.lanes, start, duration, task: order.task, classOf, isPending }, t0, t1)
    const inside = [...start.keys()].filter((position) => (start[position] ?? 0) >= t0 && (start[position] ?? 0) < t1)
    const known = inside.filter((position) => order.task[position] !== 5).map(duration).sort((a, b) => a - b)
    expect(stats.count).toBe(known.length)
    expect(stats.pendingCount).toBe(inside.length - known.length)
    expect(stats.busy).toBe(known.reduce((a, b) => a + b, 0))
    expect([stats.min, stats.max]).toEqual([known[0], known.at(-1)])
    expect(stats.p99).toBe(known[Math.ceil(0.99 * known.length) - 1])
    expect([...stats.classes.values()].reduce((a, b) => a + b, 0)).toBe(stats.busy)
    // Gaps, by looking at every place where something begins or ends.
    const spans = [...start.keys()].map((position) => [start[position] ?? 0, (start[position] ?? 0) + duration(position)] as const).sort(([a], [b]) => a - b)
    let [covered, end] = [0, t0]
    for (const [from, to] of spans) {
      if (from >= t1) break
      covered += Math.max(0, Math.min(to, t1) - Math.max(from, end))
      end = Math.max(end, Math.min(to, t1))
    }
    expect(stats.gaps).toBeCloseTo(t1 - t0 - covered, 6)
  })

  it('of nothing are nothing', () => {
    const order = stepOrder(trace(15, 10))
    const stats = areaStats({ lanes: order.lanes, start: compose(order, durationsOf(1), GAPS).start, duration: () => 1, task: order.task, classOf: new Uint8Array(40), isPending: new Uint8Array(40) }, -50, -10)
    expect([stats.count, stats.busy, stats.gaps]).toEqual([0, 0, 40])
    expect(stats.p99).toBeNaN()
  })
})

describe('results', () => {
  const columns = {
    ...NO_RESULTS,
    task: Uint32Array.from([0, 2]),
    duration: Float64Array.from([1000, Number.NaN]),
    forward: Float64Array.from([900, Number.NaN]),
    measured: Float64Array.from([1000, Number.NaN]),
    isFailed: Uint8Array.from([0, 1]),
  }

  it('tell what is known, what failed, and what is pending with a place held', () => {
    const results = resultsOf(columns, 4, Float64Array.from([Number.NaN, 250, Number.NaN, Number.NaN]))
    expect([...results.duration]).toEqual([1000, 250, -1, 1000])
    expect([...results.isPending]).toEqual([0, 1, 0, 1])
  })

  it('colour an error by its sign and size, and grey where nothing was measured', () => {
    expect([...errorClasses(resultsOf(columns, 3, new Float64Array(3)))]).toEqual([1, 7, 7])
  })
})

describe('lined up by kernel', () => {
  const launches = trace(21, 3000, { streams: 2 })
  const order = stepOrder(launches)
  const tasks = Array.from({ length: 40 }, (_, index) => ({
    index, task_id: `t${index}`, name: `k${index}`, op: '', family: 'gemm', launch_count: 1, measured_ns: null,
  }))
  const results = new Map([3, 4].map((seed) => {
    const duration = durationsOf(seed)
    return [String(seed), { ...NO_RESULTS, task: Uint32Array.from(duration.keys()), duration, isFailed: new Uint8Array(40) }] as const
  }))
  const configs = [3, 4].map((seed) => ({ id: String(seed), runId: 'r', configId: 'c', letter: seed === 3 ? 'A' : 'B', name: '', label: '', isVariant: false, token: '' }))
  const shape = { configs, source: configs[0] as never, colour: 'family', baseline: 'A' } as const
  const sources = { launches, order, tasks: tasks as never, gaps: GAPS, streams: [0, 1], results }
  const [a, b] = configGroups(sources, { ...shape, align: 'kernel' }, paletteOf(tasks as never, 'family'))

  it('equal launches start together, and none begins before the one before it has ended anywhere', () => {
    for (const [at, lane] of (a?.lanes ?? []).entries()) {
      const other = b?.lanes[at]
      for (let position = lane.first; position < lane.last; position += 1) {
        expect(lane.start[position]).toBe(other?.start[position])
        if (position === lane.first) continue
        const ended = Math.max(lane.duration(position - 1), other?.duration(position - 1) ?? 0)
        expect(lane.start[position]).toBeGreaterThanOrEqual((lane.start[position - 1] ?? 0) + ended)
      }
    }
  })

  it('each keeps its own time in its column', () => {
    const lane = a?.lanes[0]
    const own = compose(order, results.get('3')?.duration ?? new Float64Array(0), GAPS)
    expect(lane?.own).toEqual(own.start)
    expect(a?.end).toBe(b?.end)
    expect(a?.end).toBeGreaterThan(own.total)
  })
})

describe('the scene', () => {
  const groups = [
    { isCollapsed: false, lanes: [{ isThin: true }, { isThin: false }] },
    { isCollapsed: true, lanes: [{ isThin: false }] },
  ]
  it('has a place for every lane, none over another, and finds them again', () => {
    const { places, height } = scene(groups, 0)
    expect(places.map(({ kind }) => kind)).toEqual(['header', 'lane', 'lane', 'header', 'summary'])
    places.forEach((place, at) => {
      const next = places[at + 1]
      if (next !== undefined) expect(place.y + place.height).toBeLessThanOrEqual(next.y)
      expect(placeAt(places, place.y + 1)).toBe(place)
    })
    expect(height).toBeGreaterThan((places.at(-1)?.y ?? 0) + 8)
  })

  it('keeps pinned lanes above all others, in the order they were pinned', () => {
    const { places, height } = pinnedScene([{ group: 2, lane: 1 }, { group: 0, lane: 0 }])
    expect(places.map(({ kind, group, lane }) => [kind, group, lane])).toEqual([['pin', 2, 1], ['pin', 0, 0]])
    expect(placeAt(places, (places[1]?.y ?? 0) + 1)).toBe(places[1])
    expect((places[1]?.y ?? 0) + (places[1]?.height ?? 0)).toBeLessThan(height)
    expect(pinnedScene([])).toEqual({ places: [], height: 0 })
  })

  it('lets few lanes grow into the room there is', () => {
    expect(scene(groups, 400).places[2]?.height).toBe(64)
  })
})

describe('names', () => {
  it.each([
    ['void cutlass::Kernel2<cutlass_80_tensorop_bf16>(Params)', 'Kernel2'],
    ['vllm::rms_norm_kernel<c10::BFloat16>', 'rms_norm_kernel'],
    ['nvjet_tst_128x128_64x6_2x1_v_bz_TNT', 'nvjet_tst_128x128_64x6_2x1_v_bz_TNT'],
    ['', ''],
  ])('%s is shown as %s', (name, short) => expect(shortKernel(name)).toBe(short))

  it('are cut where they do not fit', () => {
    const advances = new Advances((text) => 6 * text.length)
    expect(advances.fitted('attention', 100)).toBe('attention')
    expect(advances.fitted('attention', 40)).toBe('atten…')
    expect(advances.fitted('attention', 10)).toBe('')
  })
})
