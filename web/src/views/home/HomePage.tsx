import { useQuery } from '@tanstack/react-query'
import { getRouteApi, Link } from '@tanstack/react-router'
import { useMemo } from 'react'
import { api, type ListedRun, type ListedTrace } from '../../lib/api'
import { count, counted, dateAndClock, MISSING, range, time, timeUnit } from '../../lib/format'
import { screens } from '../../lib/screens'
import { logMs, ms } from '../../lib/units'
import { PROVENANCE, provenanceOf, STATUS } from '../../lib/words'
import { DataTable, type Column } from '../DataTable'
import { Interval, scaleOf } from '../Interval'
import { Problem } from '../Problem'
import { Provenance } from '../Provenance'
import { Empty, Loading } from '../States'
import { Status } from '../Status'
import { ExampleButton } from './Example'
import styles from './HomePage.module.css'
import { Imports } from './Imports'

const route = getRouteApi('/')
const BUSY_POLL_MS = 1000
const CALM_POLL_MS = 10_000
const RUNS_SHOWN = 1000

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
          <DataTable label="Traces" rows={shownTraces} columns={TRACE_COLUMNS} keyOf={(trace) => trace.trace_id} rowPx={40} maxHeight={360} empty={<Empty>No trace matches.</Empty>} />
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

function runColumns(runs: readonly ListedRun[]): readonly Column<ListedRun>[] {
  const estimateOf = ({ best }: ListedRun) => best && { value: ms(best.value), p10: ms(best.p10), p90: ms(best.p90) }
  const estimates = runs.map(estimateOf)
  const unit = timeUnit(estimates.flatMap((one) => (one ? [one.value] : [])))
  const scale = scaleOf(estimates)
  return [
    {
      id: 'trace',
      title: 'Trace',
      width: 220,
      grows: true,
      isSticky: true,
      sortBy: (run) => run.trace_name,
      cell: (run) => (
        <Link to="/runs/$runId" params={{ runId: run.run_id }}>
          {run.name ? `${run.name} · ` : ''}
          {run.trace_name ?? run.trace_id}
        </Link>
      ),
    },
    { id: 'prov', title: 'Provenance', width: 152, sortBy: (run) => run.provenance, cell: (run) => <Provenance kind={provenanceOf(run.provenance)} /> },
    { id: 'status', title: 'Status', width: 112, sortBy: (run) => run.status, cell: (run) => <Status word={STATUS[run.status] ?? run.status} /> },
    { id: 'gpus', title: 'GPUs', width: 56, isNumber: true, sortBy: (run) => run.config_count, cell: (run) => count(run.config_count) },
    { id: 'fastest', title: 'Fastest', width: 132, sortBy: (run) => run.best?.gpu ?? null, cell: (run) => (run.best ? <code>{run.best.gpu}</code> : MISSING) },
    {
      id: 'best',
      title: 'TPOT or TTFT',
      unit,
      width: 264,
      sortBy: (run) => run.best?.value ?? null,
      cell: (run) => {
        const estimate = estimateOf(run)
        if (!estimate || !run.best) return MISSING
        return (
          <span className={styles.best} title={`${time(estimate.value, unit)} ${unit}, ${range(estimate.p10, estimate.p90, unit)}`}>
            <span className={styles.metric}>{run.best.metric.toUpperCase()}</span>
            <Interval estimate={estimate} unit={unit} scale={scale} color="accent" />
          </span>
        )
      },
    },
    { id: 'asked', title: 'Asked', width: 104, isNumber: true, sortBy: (run) => run.requested_at_ms, cell: (run) => asked(run.requested_at_ms) },
    { id: 'run', title: 'Run', width: 112, cell: (run) => <code>{run.run_id}</code> },
  ]
}

// --- traces -----------------------------------------------------------------------------------------------------------

const TRACE_COLUMNS: readonly Column<ListedTrace>[] = [
  {
    id: 'name',
    title: 'Name',
    width: 240,
    grows: true,
    isSticky: true,
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
  { id: 'prov', title: 'Provenance', width: 172, cell: (trace) => <Provenance kind={provenanceOf(trace.provenance)} /> },
  { id: 'status', title: 'Status', width: 112, cell: (trace) => <Status word={trace.is_truncated === true ? 'truncated' : (STATUS[trace.status] ?? trace.status)} /> },
  { id: 'model', title: 'Model', width: 176, cell: (trace) => trace.model ?? 'not given' },
  { id: 'gpu', title: 'Recorded on', width: 136, cell: (trace) => (trace.source_gpu ? <code>{trace.source_gpu}</code> : MISSING) },
  { id: 'kernels', title: 'Kernels', width: 88, isNumber: true, cell: (trace) => (trace.kernels === null ? MISSING : count(trace.kernels)) },
  { id: 'imported', title: 'Imported', width: 136, isNumber: true, cell: (trace) => asked(trace.uploaded_at_ms) },
  {
    id: 'new',
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
]

const asked = (at: number | null) => (at === null ? MISSING : dateAndClock(logMs(at), logMs(Date.now())))
