import { createContext, useContext } from 'react'
import type { Position } from '../../lib/units'
import type { Link } from '../../store/feed'
import type { Recording } from '../../store/recording'
import type { Run } from '../../store/run'

/** What every tab of a run may look at. */
export interface RunView {
  readonly runId: string
  /** As known at the moment shown: now, or a position of the log. */
  readonly run: Run
  /** As known now. */
  readonly head: Run
  readonly recording: Recording
  /** Grows with every record that came; the recording itself is the same object throughout. */
  readonly version: number
  readonly recordCount: number
  /** null: now. */
  readonly at: Position | null
  readonly isReplay: boolean
  readonly link: Link
  readonly seek: (at: Position | null) => void
}

export const RunContext = createContext<RunView | null>(null)

/** The run whose tab this is. */
export function useRun(): RunView {
  const view = useContext(RunContext)
  if (view === null) throw new Error('useRun outside of a run')
  return view
}
