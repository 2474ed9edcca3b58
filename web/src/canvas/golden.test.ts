import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { compose } from './compose'
import type { LaunchColumns } from './launches'
import { stepOrder } from './order'

/** Written by the aggregator's own timeline (tests/golden/test_timeline_composition.py). */
interface Case {
  readonly name: string
  readonly gaps: { readonly graph_ns: number; readonly eager_ns: number }
  readonly rank: readonly number[]
  readonly stream: readonly number[]
  readonly step: readonly number[]
  readonly task: readonly number[]
  readonly graph: readonly number[]
  readonly task_duration_ns: readonly number[]
  readonly start_ns: readonly number[]
  readonly step_start_ns: readonly (readonly [number, number, number])[]
  readonly step_end_ns: readonly (readonly [number, number, number])[]
}

const CASES = JSON.parse(readFileSync(new URL('./golden/timeline.json', import.meta.url), 'utf8')) as readonly Case[]

describe('the composed timeline', () => {
  it.each(CASES.map((one) => [one.name, one] as const))('equals the aggregator’s to the nanosecond: %s', (_, one) => {
    const streams = [...new Set(one.stream)].sort((a, b) => a - b)
    const launches: LaunchColumns = {
      count: one.rank.length,
      rank: Uint16Array.from(one.rank),
      seq: Uint32Array.from(one.rank.keys()),
      task: Uint32Array.from(one.task),
      stream: Uint16Array.from(one.stream, (stream) => streams.indexOf(stream)),
      step: Int32Array.from(one.step),
      graph: Uint8Array.from(one.graph, (graph) => (graph >= 0 ? 1 : 0)),
      hostStart: null,
      measuredStart: null,
      measuredDuration: null,
    }
    const order = stepOrder(launches)
    const composed = compose(order, Float64Array.from(one.task_duration_ns), one.gaps)
    const starts = one.start_ns.map((_, row) => composed.start[order.position[row] ?? 0] ?? -1)
    expect(starts).toEqual(one.start_ns)
    const said = (times: Float64Array) => order.segments.groups.map(({ rank, step }, group) => [rank, step, times[group]])
    expect(said(composed.stepStart)).toEqual(one.step_start_ns)
    expect(said(composed.stepEnd)).toEqual(one.step_end_ns)
  })
})
