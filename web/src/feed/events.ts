import { tableFromIPC, type Table } from 'apache-arrow'
import type {
  CascadeEvent,
  KernelSimulationRequestedRow,
  KernelsPredictedRow,
  KernelsSimulatedRow,
  LaunchesRecordedRow,
  LaunchesTracedRow,
  StepsPredictedRow,
} from '../schema/events'

/** Events that carry volume: the rows of their Arrow batch, read column by column. */
interface RowsOf {
  readonly LaunchesRecorded: LaunchesRecordedRow
  readonly LaunchesTraced: LaunchesTracedRow
  readonly KernelSimulationRequested: KernelSimulationRequestedRow
  readonly KernelsSimulated: KernelsSimulatedRow
  readonly KernelsPredicted: KernelsPredictedRow
  readonly StepsPredicted: StepsPredictedRow
}

export interface Rows<Row> {
  readonly count: number
  /** Integers are exact to 2^53, which is 104 days in ns. */
  readonly numbers: (name: keyof Row & string) => readonly (number | null)[]
  readonly texts: (name: keyof Row & string) => readonly string[]
}

type WithRows<Event extends CascadeEvent> = Event extends { readonly type: keyof RowsOf }
  ? Event & { readonly rows: Rows<RowsOf[Event['type']]> }
  : Event

export type FeedEvent = { [E in CascadeEvent as E['type']]: WithRows<E> }[CascadeEvent['type']]

const COLUMNAR: ReadonlySet<string> = new Set<keyof RowsOf>([
  'LaunchesRecorded',
  'LaunchesTraced',
  'KernelSimulationRequested',
  'KernelsSimulated',
  'KernelsPredicted',
  'StepsPredicted',
])
const KNOWN: ReadonlySet<string> = new Set<CascadeEvent['type']>([
  'TraceUploaded',
  'LaunchesRecorded',
  'StepRecorded',
  'HostProfileRecorded',
  'TraceHeartbeat',
  'TraceEnded',
  'TraceStarted',
  'SignatureTraced',
  'KernelTaskTraced',
  'LaunchesTraced',
  'StepTraced',
  'HostProfileMeasured',
  'ArtifactStored',
  'TraceCompleted',
  'TraceRejected',
  'RunRequested',
  'RunCancelled',
  'KernelSimulationRequested',
  'SimulatorStarted',
  'SimulatorLogged',
  'KernelsSimulated',
  'SimulatorFinished',
  'KernelsPredicted',
  'StepsPredicted',
  'RequestPredicted',
  'AccuracyMeasured',
  'RefinementChosen',
  'RunCompleted',
  'RunFailed',
  'RecordDeadLettered',
])

/** The event of a record's value; null for a type that this page does not know yet. */
export function decodeEvent(type: string, value: Uint8Array): FeedEvent | null {
  if (!KNOWN.has(type)) return null
  if (!COLUMNAR.has(type)) return JSON.parse(new TextDecoder().decode(value)) as FeedEvent
  // A copy starts on an aligned address, which the columns' typed arrays need.
  const table = tableFromIPC(value.slice())
  const fields = JSON.parse(table.schema.metadata.get('event') ?? '{}') as object
  return { ...fields, rows: rowsOf(table) } as unknown as FeedEvent
}

function rowsOf(table: Table): Rows<Record<string, unknown>> {
  const column = (name: string) => {
    const found = table.getChild(name)
    if (found === null) throw new Error(`column ${name} is missing`)
    return found
  }
  return {
    count: table.numRows,
    numbers: (name) => Array.from(column(name), (value: unknown) => (value === null ? null : Number(value))),
    texts: (name) => Array.from(column(name), (value: unknown) => String(value)),
  }
}
