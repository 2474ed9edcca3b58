import type { FromTimeline, TwinRow } from '../../canvas/protocol'
import { familyShown } from '../../lib/families'
import { count, digits } from '../../lib/format'
import { DataTable, type Column } from '../DataTable'
import { Empty } from '../States'
import styles from './Twin.module.css'

const COLUMNS: readonly Column<TwinRow>[] = [
  { id: 'name', title: 'Kernel', width: 220, grows: true, isSticky: true, cell: ({ name }) => name },
  { id: 'family', title: 'Family', width: 140, cell: ({ family }) => familyShown(family).word },
  { id: 'step', title: 'Step', width: 120, cell: ({ step }) => step },
  { id: 'lane', title: 'Lane', width: 110, cell: ({ lane }) => lane },
  { id: 'start', title: 'Start', unit: 'µs', width: 130, isNumber: true, cell: ({ start }) => (start / 1000).toFixed(3) },
  { id: 'duration', title: 'Duration', unit: 'µs', width: 110, isNumber: true, cell: ({ duration }) => (duration === null ? '–' : digits(duration / 1000)) },
]

interface Props {
  readonly twin: Extract<FromTimeline, { readonly op: 'twin' }> | null
  readonly selected: number | undefined
  readonly onSelect: (selected: string) => void
}

/** What the canvas shows, as a table: for those who do not see it, and for copying. */
export function Twin({ twin, selected, onSelect }: Props) {
  return (
    <section className={styles.twin} aria-label="Launches in view">
      <p className={styles.head}>
        {twin === null
          ? ''
          : twin.rows.length < twin.total
            ? `The first ${count(twin.rows.length)} of ${count(twin.total)} launches in view on ${twin.letter}; zoom in for the others.`
            : `${count(twin.total)} launches in view on ${twin.letter}.`}
      </p>
      <div className={styles.table}>
        <DataTable
          label="Launches in view"
          rows={twin?.rows ?? []}
          columns={COLUMNS}
          keyOf={({ row }) => String(row)}
          selected={selected === undefined ? undefined : String(selected)}
          onRow={({ row }) => onSelect(`${twin?.letter ?? 'A'}.${row}`)}
          empty={<Empty>No launch is in view.</Empty>}
        />
      </div>
    </section>
  )
}
