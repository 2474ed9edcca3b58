import { useQuery } from '@tanstack/react-query'
import { getRouteApi, Link } from '@tanstack/react-router'
import { useMemo } from 'react'
import { api, type ListedTrace } from '../../lib/api'
import { count, counted, dateAndClock, MISSING } from '../../lib/format'
import { logMs } from '../../lib/units'
import { provenanceOf, STATUS } from '../../lib/words'
import { DataTable, type Column } from '../DataTable'
import { Page } from '../Page'
import { Problem } from '../Problem'
import { Provenance } from '../Provenance'
import { Empty, Loading } from '../States'
import { Status } from '../Status'
import styles from './TracesPage.module.css'

const route = getRouteApi('/traces')
const BUSY_POLL_MS = 1000
const CALM_POLL_MS = 10_000

/** Every recording of this server. */
export function TracesPage() {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const traces = useQuery({
    queryKey: ['traces'],
    queryFn: api.traces,
    refetchInterval: (query) => (query.state.data?.some(({ status }) => status === 'importing') ? BUSY_POLL_MS : CALM_POLL_MS),
  })
  const wanted = (search.q ?? '').toLowerCase()
  const shown = useMemo(
    () =>
      (traces.data ?? []).filter((trace) =>
        [trace.trace_id, trace.name, trace.model, trace.status, trace.provenance, trace.source_gpu, trace.engine].some((text) => text?.toLowerCase().includes(wanted)),
      ),
    [traces.data, wanted],
  )
  return (
    <Page
      title="Traces"
      actions={
        <>
          <span className={styles.total}>{traces.data && counted(shown.length, 'trace')}</span>
          <input
            className="field"
            type="search"
            aria-label="Filter traces"
            placeholder="Filter by name, model, GPU"
            value={search.q ?? ''}
            onChange={(event) => void navigate({ search: (before) => ({ ...before, q: event.target.value || undefined }), replace: true })}
          />
          <Link to="/" className="button primary">
            Import
          </Link>
        </>
      }
    >
      {traces.error && <Problem error={traces.error} onRetry={() => void traces.refetch()} />}
      {traces.isPending && <Loading words="Traces" rows={8} height={320} />}
      {traces.data && (
        <div className={`panel ${styles.table}`}>
          <DataTable
            label="Traces"
            rows={shown}
            columns={COLUMNS}
            keyOf={(trace) => trace.trace_id}
            rowPx={40}
            sort={search.sort === undefined ? undefined : { by: search.sort, isDescending: search.desc === true }}
            onSort={(sort) => void navigate({ search: (before) => ({ ...before, sort: sort.by, desc: sort.isDescending || undefined }), replace: true })}
            maxHeight={720}
            empty={<Empty>{wanted === '' ? 'No trace is here yet: drop a profiler’s file on Home, or open the example there.' : `No trace matches “${search.q ?? ''}”.`}</Empty>}
          />
        </div>
      )}
    </Page>
  )
}

const COLUMNS: readonly Column<ListedTrace>[] = [
  {
    id: 'name',
    title: 'Trace',
    width: 280,
    grows: true,
    isSticky: true,
    sortBy: ({ name }) => name,
    cell: (trace) => (
      <Link to="/traces/$traceId" params={{ traceId: trace.trace_id }}>
        {trace.name ?? trace.trace_id}
      </Link>
    ),
  },
  { id: 'provenance', title: 'Provenance', width: 160, sortBy: ({ provenance }) => provenance, cell: (trace) => <Provenance kind={provenanceOf(trace.provenance)} /> },
  { id: 'status', title: 'Status', width: 120, sortBy: ({ status }) => status, cell: (trace) => <Status word={trace.is_truncated === true ? 'truncated' : (STATUS[trace.status] ?? trace.status)} /> },
  { id: 'model', title: 'Model', width: 200, sortBy: ({ model }) => model, cell: (trace) => trace.model ?? MISSING },
  { id: 'gpu', title: 'Recorded on', width: 136, sortBy: ({ source_gpu: gpu }) => gpu, cell: (trace) => (trace.source_gpu === null ? MISSING : <code>{trace.source_gpu}</code>) },
  { id: 'engine', title: 'Engine', width: 136, sortBy: ({ engine }) => engine, cell: (trace) => (trace.engine ? `${trace.engine} ${trace.engine_version ?? ''}` : MISSING) },
  { id: 'kernels', title: 'Kernels', width: 96, isNumber: true, sortBy: ({ kernels }) => kernels, cell: (trace) => (trace.kernels === null ? MISSING : count(trace.kernels)) },
  {
    id: 'uploaded',
    title: 'Imported',
    width: 144,
    isNumber: true,
    sortBy: ({ uploaded_at_ms: at }) => at,
    cell: (trace) => (trace.uploaded_at_ms === null ? MISSING : dateAndClock(logMs(trace.uploaded_at_ms), logMs(Date.now()))),
  },
]
