import { expect, it } from 'vitest'
import type { FeedEvent } from '../feed/events'
import type { FeedRecord } from '../feed/frames'
import { logMs, position } from '../lib/units'
import { Recording } from './recording'
import { applyAll, emptyRun } from './run'

/** Many records of a run in which something changes with each. */
export function longLog(count: number): readonly FeedRecord[] {
  return Array.from({ length: count }, (_, at): FeedRecord => {
    const event: FeedEvent =
      at % 3 === 0
        ? { type: 'TraceRejected', trace_id: 't', name: `name ${at}`, reason: `reason ${at}` }
        : { type: 'RunFailed', run_id: 'r', reason: `failed ${at}` }
    return { position: position(at), at: logMs(1000 + at), type: event.type, event }
  })
}

it('comes to any moment of a long log, the same as a fold from its beginning', () => {
  const records = longLog(20_000)
  const recording = new Recording('r')
  // As frames come: of uneven size, and one of them twice.
  for (let from = 0; from < records.length; from += 333) recording.append(records.slice(Math.max(0, from - 50), from + 333))
  expect(recording.records.length).toBe(records.length)
  for (const at of [0, 1, 255, 256, 257, 9_999, 19_999, 20_000]) {
    const whole = applyAll(
      emptyRun('r'),
      records.slice(0, at).map(({ event }) => event),
    )
    expect(recording.at(position(at))).toEqual(whole)
  }
  expect(recording.timeAt(position(500))).toBe(1499)
})
