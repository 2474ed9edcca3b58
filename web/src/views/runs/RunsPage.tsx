import { useQuery } from '@tanstack/react-query'
import { getRouteApi, Link } from '@tanstack/react-router'
import { useMemo } from 'react'
import { api, type ListedRun } from '../../lib/api'
import { count, counted, dateAndClock, timeUnit } from '../../lib/format'
import { logMs, ms } from '../../lib/units'
import { provenanceOf, STATUS } from '../../lib/words'
import { DataTable, type Column } from '../DataTable'
import { Interval, scaleOf } from '../Interval'
import { Page } from '../Page'
import { Problem } from '../Problem'
import { Provenance } from '../Provenance'
import { Empty, Loading } from '../States'
import { Status } from '../Status'
import styles from './RunsPage.module.css'

const route = getRouteApi('/runs')
const BUSY_POLL_MS = 1000
const CALM_POLL_MS = 10_000

/** Every run of this server. */
export function RunsPage() {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const runs = useQuery({
    queryKey: ['runs'],
    queryFn: api.runs,
    refetchInterval: (query) => (query.state.data?.some((run) => run.status === 'running') ? BUSY_POLL_MS : CALM_POLL_MS),
  })
  const wanted = (search.q ?? '').toLowerCase()
  const shown = useMemo(
    () =>
      (runs.data ?? []).filter((run) =>
        [run.run_id, run.trace_name, run.model_name, run.status, run.provenance].some((text) => text?.toLowerCase().includes(wanted)),
      ),
    [runs.data, wanted],
  )
  const columns = useMemo(() => columnsOf(shown), [shown])
  return (
    <Page
      title="Runs"
      actions={
        <>
          <span className={styles.total}>
            {runs.data && (shown.length === runs.data.length ? counted(shown.length, 'run') : `${count(shown.length)} of ${count(runs.data.length)}`)}
          </span>
          <input
            className="field"
            type="search"
            aria-label="Filter runs"
            placeholder="Filter by name, model, status"
            value={search.q ?? ''}
            onChange={(event) =>
              void navigate({ search: (before) => ({ ...before, q: event.target.value || undefined }), replace: true })
            }
          />
          <Link to="/new" className="button primary">
            New run
          </Link>
        </>
      }
    >
      {runs.error && <Problem error={runs.error} onRetry={() => void runs.refetch()} />}
      {runs.isPending && <Loading words="Reading runs" rows={8} />}
      {runs.data && (
        <section className={`panel ${styles.list}`}>
          <DataTable
            label="Runs"
            rows={shown}
            columns={columns}
            keyOf={(run) => run.run_id}
            rowPx={40}
            maxHeight={10_000}
            sort={search.sort === undefined ? undefined : { by: search.sort, isDescending: search.desc === true }}
            onSort={({ by, isDescending }) =>
              void navigate({ search: (before) => ({ ...before, sort: by, desc: isDescending || undefined }), replace: true })
            }
            empty={
              <Empty action={<Link to="/" className="button">Import a trace</Link>}>
                {runs.data.length === 0 ? 'No run was asked for yet. A run needs a trace, or the example of the first page.' : 'No run matches.'}
              </Empty>
            }
          />
        </section>
      )}
    </Page>
  )
}

function columnsOf(runs: readonly ListedRun[]): readonly Column<ListedRun>[] {
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
          {run.trace_name ?? run.trace_id}
        </Link>
      ),
    },
    { id: 'prov', title: 'Provenance', width: 150, sortBy: (run) => run.provenance, cell: (run) => <Provenance kind={provenanceOf(run.provenance)} /> },
    { id: 'status', title: 'Status', width: 180, sortBy: (run) => run.status, cell: (run) => <Status word={STATUS[run.status] ?? run.status} /> },
    { id: 'gpus', title: 'GPUs', width: 72, isNumber: true, sortBy: (run) => run.config_count, cell: (run) => count(run.config_count) },
    { id: 'fastest', title: 'Fastest', width: 200, sortBy: (run) => run.best?.gpu ?? null, cell: (run) => run.best && <code>{run.best.gpu}</code> },
    {
      id: 'best',
      title: 'TPOT or TTFT',
      unit,
      width: 260,
      isNumber: true,
      sortBy: (run) => run.best?.value ?? null,
      cell: (run) => {
        const estimate = estimateOf(run)
        return estimate && run.best ? (
          <span className={styles.best}>
            <span className={styles.metric}>{run.best.metric.toUpperCase()}</span>
            <Interval estimate={estimate} unit={unit} scale={scale} color="accent" />
          </span>
        ) : (
          '–'
        )
      },
    },
    {
      id: 'asked',
      title: 'Asked',
      width: 150,
      sortBy: (run) => run.requested_at_ms,
      cell: (run) => (run.requested_at_ms === null ? '–' : dateAndClock(logMs(run.requested_at_ms), logMs(Date.now()))),
    },
    { id: 'run', title: 'Run', width: 150, sortBy: (run) => run.run_id, cell: (run) => <code>{run.run_id}</code> },
  ]
}
