import { Link } from '@tanstack/react-router'
import type { ListedTrace } from '../../lib/api'
import { count, dateAndClock, MISSING } from '../../lib/format'
import { logMs } from '../../lib/units'
import { provenanceOf, STATUS } from '../../lib/words'
import type { Column } from '../DataTable'
import { Provenance } from '../Provenance'
import { Status } from '../Status'
import styles from './traceColumns.module.css'

const COLUMNS = {
  name: {
    title: 'Trace',
    width: 240,
    grows: true,
    isSticky: true,
    sortBy: ({ name }) => name,
    cell: (trace) => (
      <>
        <Link to="/traces/$traceId" params={{ traceId: trace.trace_id }}>
          {trace.name ?? trace.trace_id}
        </Link>
        {trace.reason && (
          <span className={styles.reason} title={trace.reason}>
            {trace.reason}
          </span>
        )}
      </>
    ),
  },
  provenance: { title: 'Provenance', width: 160, sortBy: ({ provenance }) => provenance, cell: (trace) => <Provenance kind={provenanceOf(trace.provenance)} /> },
  status: {
    title: 'Status',
    width: 112,
    sortBy: ({ status }) => status,
    cell: (trace) => <Status word={trace.is_truncated === true ? 'truncated' : (STATUS[trace.status] ?? trace.status)} />,
  },
  model: { title: 'Model', width: 184, sortBy: ({ model }) => model, cell: (trace) => trace.model ?? 'not given' },
  gpu: {
    title: 'Recorded on',
    width: 136,
    sortBy: ({ source_gpu: gpu }) => gpu,
    cell: (trace) => (trace.source_gpu === null ? MISSING : <code>{trace.source_gpu}</code>),
  },
  engine: { title: 'Engine', width: 136, sortBy: ({ engine }) => engine, cell: (trace) => (trace.engine ? `${trace.engine} ${trace.engine_version ?? ''}` : MISSING) },
  kernels: { title: 'Kernels', width: 96, isNumber: true, sortBy: ({ kernels }) => kernels, cell: (trace) => (trace.kernels === null ? MISSING : count(trace.kernels)) },
  uploaded: {
    title: 'Imported',
    width: 136,
    isNumber: true,
    sortBy: ({ uploaded_at_ms: at }) => at,
    cell: (trace) => (trace.uploaded_at_ms === null ? MISSING : dateAndClock(logMs(trace.uploaded_at_ms), logMs(Date.now()))),
  },
  new: {
    title: 'Ask',
    width: 96,
    isNumber: true,
    cell: (trace) =>
      trace.status === 'complete' && (
        <Link to="/new" search={{ trace: trace.trace_id }} aria-label={`New run of ${trace.name ?? trace.trace_id}`}>
          New run
        </Link>
      ),
  },
} satisfies Readonly<Record<string, Omit<Column<ListedTrace>, 'id'>>>

/** A trace in a row, wherever traces are listed. */
export const traceColumns = (ids: readonly (keyof typeof COLUMNS)[]): readonly Column<ListedTrace>[] => ids.map((id) => ({ id, ...COLUMNS[id] }))
