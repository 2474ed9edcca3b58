import { useQuery } from '@tanstack/react-query'
import { getRouteApi } from '@tanstack/react-router'
import { useMemo } from 'react'
import { api } from '../../lib/api'
import { counted } from '../../lib/format'
import { DataTable } from '../DataTable'
import { Page } from '../Page'
import { Problem } from '../Problem'
import { Empty, Loading } from '../States'
import { Imports } from '../home/Imports'
import { traceColumns } from './traceColumns'
import styles from './TracesPage.module.css'

const route = getRouteApi('/traces')
const BUSY_POLL_MS = 1000
const CALM_POLL_MS = 10_000
const COLUMNS = traceColumns(['name', 'provenance', 'status', 'model', 'gpu', 'engine', 'kernels', 'uploaded', 'new'])

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
        </>
      }
    >
      <Imports />
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
            empty={<Empty>{wanted === '' ? 'No trace is here yet: drop a profiler’s file anywhere, or open the example of Home.' : `No trace matches “${search.q ?? ''}”.`}</Empty>}
          />
        </div>
      )}
    </Page>
  )
}
