import { useQuery } from '@tanstack/react-query'
import { getRouteApi, Link } from '@tanstack/react-router'
import { useMemo } from 'react'
import { api } from '../../lib/api'
import { count, counted } from '../../lib/format'
import { DataTable } from '../DataTable'
import { Page } from '../Page'
import { Problem } from '../Problem'
import { Empty, Loading } from '../States'
import { runColumns } from './runColumns'
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
  const columns = useMemo(() => runColumns(shown), [shown])
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
