import { useQuery } from '@tanstack/react-query'
import { getRouteApi, Link } from '@tanstack/react-router'
import { useMemo } from 'react'
import { api, type ListedRun } from '../../lib/api'
import { count, counted } from '../../lib/format'
import { screens } from '../../lib/screens'
import { PROVENANCE, STATUS } from '../../lib/words'
import { DataTable } from '../DataTable'
import { Problem } from '../Problem'
import { Empty, Loading } from '../States'
import { ExampleButton } from './Example'
import styles from './HomePage.module.css'
import { Imports } from './Imports'
import { runColumns } from '../runs/runColumns'
import { traceColumns } from '../traces/traceColumns'

const route = getRouteApi('/')
const BUSY_POLL_MS = 1000
const CALM_POLL_MS = 10_000
const RUNS_SHOWN = 1000

/** Home has a row of a trace at a glance, and a way to ask about it. */
const HOME_TRACE_COLUMNS = traceColumns(['name', 'provenance', 'status', 'model', 'gpu', 'kernels', 'uploaded', 'new'])

/** What exists, what is running, and how to start. */
export function HomePage() {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const traces = useQuery({
    queryKey: ['traces'],
    queryFn: api.traces,
    refetchInterval: (query) => (query.state.data?.some((trace) => trace.status === 'importing') ? BUSY_POLL_MS : CALM_POLL_MS),
  })
  const filters = { q: search.q ?? '', status: search.status ?? '', provenance: search.prov ?? '' }
  const runs = useQuery({
    queryKey: ['runs', 'page', filters],
    queryFn: () => screens.runs(filters, RUNS_SHOWN),
    placeholderData: (before) => before,
    refetchInterval: (query) => (query.state.data?.runs.some((run) => run.status === 'running') ? BUSY_POLL_MS : CALM_POLL_MS),
  })
  const wanted = filters.q.toLowerCase()
  const shownTraces = useMemo(
    () =>
      (traces.data ?? []).filter((trace) =>
        [trace.trace_id, trace.name, trace.model, trace.status, trace.provenance].some((text) => text?.toLowerCase().includes(wanted)),
      ),
    [traces.data, wanted],
  )
  const isFiltered = filters.q !== '' || filters.status !== '' || filters.provenance !== ''
  const isEmpty = !isFiltered && runs.data?.total === 0 && traces.data?.length === 0
  const set = (changes: Partial<typeof search>) => void navigate({ search: (before) => ({ ...before, ...changes }), replace: true })
  return (
    <div className={styles.page}>
      <div className={styles.head}>
        <h1>Traces and runs</h1>
        <input
          className={`field ${styles.filter}`}
          type="search"
          aria-label="Filter traces and runs"
          placeholder="Filter by name, model, GPU"
          value={filters.q}
          onChange={(event) => set({ q: event.target.value || undefined })}
        />
        <Link to="/new" className="button primary">
          New run
        </Link>
      </div>
      <Imports />
      {isEmpty && (
        <section className={`panel ${styles.empty}`} aria-label="Start">
          <p>Nothing is here yet. Drop a trace above, or look at a real vLLM recording on eight GPUs.</p>
          <ExampleButton isPrimary />
        </section>
      )}
      {runs.error && <Problem error={runs.error} onRetry={() => void runs.refetch()} />}
      {runs.isPending && <Loading words="Runs" rows={6} height={240} />}
      {runs.data && !isEmpty && (
        <section className={`panel ${styles.list}`} aria-labelledby="runs">
          <div className={styles.listHead}>
            <h2 id="runs">Runs</h2>
            <span className={styles.total}>
              {runs.data.runs.length < runs.data.total ? `the newest ${count(runs.data.runs.length)} of ${count(runs.data.total)}` : counted(runs.data.total, 'run')}
            </span>
            <Filters statuses={runs.data.statuses} status={filters.status} provenance={filters.provenance} onChange={set} />
          </div>
          <RunTable
            runs={runs.data.runs}
            sort={search.sort}
            isDescending={search.desc === true}
            onSort={(by, isDescending) => set({ sort: by, desc: isDescending || undefined })}
            isFiltered={isFiltered}
          />
        </section>
      )}
      {traces.error && <Problem error={traces.error} onRetry={() => void traces.refetch()} />}
      {traces.data && traces.data.length > 0 && (
        <section className={`panel ${styles.list}`} aria-labelledby="traces">
          <div className={styles.listHead}>
            <h2 id="traces">Traces</h2>
            <span className={styles.total}>{shownTraces.length === traces.data.length ? counted(traces.data.length, 'trace') : `${count(shownTraces.length)} of ${count(traces.data.length)}`}</span>
          </div>
          <DataTable label="Traces" rows={shownTraces} columns={HOME_TRACE_COLUMNS} keyOf={(trace) => trace.trace_id} rowPx={40} maxHeight={360} empty={<Empty>No trace matches.</Empty>} />
        </section>
      )}
      {!isEmpty && runs.data && !isFiltered && !runs.data.runs.some((run) => run.trace_name?.includes('opt-125m')) && (
        <p className={styles.example}>
          <ExampleButton isPrimary={false} />
        </p>
      )}
    </div>
  )
}

// --- runs -------------------------------------------------------------------------------------------------------------

interface FiltersProps {
  readonly statuses: Readonly<Record<string, number>>
  readonly status: string
  readonly provenance: string
  readonly onChange: (changes: { readonly status?: string | undefined; readonly prov?: string | undefined }) => void
}

/** Chips that filter: pressed again, they let everything through. */
function Filters({ statuses, status, provenance, onChange }: FiltersProps) {
  const shown = status === '' ? Object.entries(statuses) : [[status, statuses[status] ?? 0] as const]
  return (
    <div className={styles.chips} role="group" aria-label="Show only">
      {shown.map(([name, n]) => (
        <button key={name} type="button" className={`chip ${styles.chip}`} aria-pressed={status === name} onClick={() => onChange({ status: status === name ? undefined : name })}>
          {STATUS[name] ?? name} {count(n)}
        </button>
      ))}
      {Object.entries(PROVENANCE).map(([name, { word }]) => (
        <button key={name} type="button" className={`chip ${styles.chip}`} aria-pressed={provenance === name} onClick={() => onChange({ prov: provenance === name ? undefined : name })}>
          {word}
        </button>
      ))}
    </div>
  )
}

interface RunTableProps {
  readonly runs: readonly ListedRun[]
  readonly sort: string | undefined
  readonly isDescending: boolean
  readonly isFiltered: boolean
  readonly onSort: (by: string, isDescending: boolean) => void
}

function RunTable({ runs, sort, isDescending, isFiltered, onSort }: RunTableProps) {
  const columns = useMemo(() => runColumns(runs), [runs])
  return (
    <DataTable
      label="Runs"
      rows={runs}
      columns={columns}
      keyOf={(run) => run.run_id}
      rowPx={40}
      maxHeight={480}
      sort={sort === undefined ? undefined : { by: sort, isDescending }}
      onSort={(next) => onSort(next.by, next.isDescending)}
      empty={<Empty>{isFiltered ? 'No run matches these filters.' : 'No run was asked for yet.'}</Empty>}
    />
  )
}
