import { tableFromIPC } from 'apache-arrow'
import { logMs, position, type LogMs, type Position } from '../lib/units'
import { decodeEvent, type FeedEvent } from './events'

/** A record of the log as a viewer gets it. */
export interface FeedRecord {
  readonly position: Position
  readonly at: LogMs
  readonly type: string
  /** null: a type this page does not know. */
  readonly event: FeedEvent | null
}

/** The records of one binary frame of /ws, in order. */
export function decodeFrame(frame: Uint8Array): readonly FeedRecord[] {
  const table = tableFromIPC(frame)
  const positions = table.getChild('position')
  const times = table.getChild('timestamp_ms')
  const types = table.getChild('type')
  const values = table.getChild('value')
  return Array.from({ length: table.numRows }, (_, row) => {
    const type = String(types?.get(row))
    return {
      position: position(Number(positions?.get(row))),
      at: logMs(Number(times?.get(row))),
      type,
      event: decodeEvent(type, values?.get(row) as Uint8Array),
    }
  })
}
