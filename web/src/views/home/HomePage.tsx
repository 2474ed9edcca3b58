import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { api, type ListedRun, type ListedTrace } from '../../lib/api'
import { counted, count, dateAndClock, range, time, timeUnit } from '../../lib/format'
import { logMs, ms } from '../../lib/units'
import { provenanceOf, STATUS } from '../../lib/words'
import { ExampleButton } from './Example'
import styles from './HomePage.module.css'
import { Imports } from './Imports'
import { Interval, scaleOf } from '../Interval'
import { Problem } from '../Problem'
import { Provenance } from '../Provenance'
import { Status } from '../Status'

const BUSY_POLL_MS = 1000
const CALM_POLL_MS = 10_000

/** What exists, what is running, and how to start. */
export function HomePage() {
  const [filter, setFilter] = useState('')
  const traces = useQuery({
    queryKey: ['traces'],
    queryFn: api.traces,
    refetchInterval: (query) =>
      query.state.data?.some((trace) => trace.status === 'importing') ? BUSY_POLL_MS : CALM_POLL_MS,
  })
  const runs = useQuery({
    queryKey: ['runs'],
    queryFn: api.runs,
    refetchInterval: (query) => (query.state.data?.some((run) => run.status === 'running') ? BUSY_POLL_MS : CALM_POLL_MS),
  })
  const matches = (...texts: readonly (string | null)[]) =>
    texts.some((text) => text?.toLowerCase().includes(filter.toLowerCase()))
  const shownRuns = (runs.data ?? []).filter((run) =>
    matches(run.run_id, run.trace_name, run.model_name, run.status, run.provenance),
  )
  const shownTraces = (traces.data ?? []).filter((trace) =>
    matches(trace.trace_id, trace.name, trace.model, trace.status, trace.provenance),
  )
  const isEmpty = runs.data?.length === 0 && traces.data?.length === 0
  return (
    <div className={styles.page}>
      <div className={styles.head}>
        <h1>Traces and runs</h1>
        <label className="visually-hidden" htmlFor="filter">
          Filter traces and runs
        </label>
        <input
          id="filter"
          className={`field ${styles.filter}`}
          type="search"
          placeholder="Filter by name, model, status"
          value={filter}
          onChange={(event) => setFilter(event.target.value)}
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
      {runs.data && runs.data.length > 0 && <Runs runs={shownRuns} total={runs.data.length} />}
      {traces.error && <Problem error={traces.error} onRetry={() => void traces.refetch()} />}
      {traces.data && traces.data.length > 0 && <Traces traces={shownTraces} total={traces.data.length} />}
      {!isEmpty && runs.data && !runs.data.some((run) => run.trace_name?.includes('opt-125m')) && (
        <p className={styles.example}>
          <ExampleButton isPrimary={false} />
        </p>
      )}
    </div>
  )
}

function Runs({ runs, total }: { readonly runs: readonly ListedRun[]; readonly total: number }) {
  const estimates = runs.map((run) => run.best && { value: ms(run.best.value), p10: ms(run.best.p10), p90: ms(run.best.p90) })
  const unit = timeUnit(estimates.flatMap((one) => (one ? [one.value] : [])))
  const scale = scaleOf(estimates)
  return (
    <section className={`panel ${styles.list}`} aria-labelledby="runs">
      <div className={styles.listHead}>
        <h2 id="runs">Runs</h2>
        <span className={styles.total}>{shownOf(runs.length, total)}</span>
      </div>
      <div className={styles.scroll} role="region" aria-label="Table of runs" tabIndex={0}>
        <table className={styles.table}>
          <thead>
            <tr>
              <th scope="col">Trace</th>
              <th scope="col">Provenance</th>
              <th scope="col">Status</th>
              <th scope="col" className={styles.number}>
                GPUs
              </th>
              <th scope="col">Fastest</th>
              <th scope="col" className={styles.number}>
                TPOT or TTFT, {unit}
              </th>
              <th scope="col">Asked</th>
              <th scope="col">Run</th>
            </tr>
          </thead>
          <tbody>
            {runs.map((run, row) => {
              const best = estimates[row]
              return (
                <tr key={run.run_id}>
                  <td className={styles.name}>
                    <Link to="/runs/$runId" params={{ runId: run.run_id }}>
                      {run.trace_name ?? run.trace_id}
                    </Link>
                  </td>
                  <td>
                    <Provenance kind={provenanceOf(run.provenance)} />
                  </td>
                  <td>
                    <Status word={STATUS[run.status] ?? run.status} />
                  </td>
                  <td className={styles.number}>{run.config_count}</td>
                  <td>{run.best && <code>{run.best.gpu}</code>}</td>
                  <td className={styles.number}>
                    {best && run.best ? (
                      <span className={styles.best} title={`${time(best.value, unit)} ${unit}, ${range(best.p10, best.p90, unit)}`}>
                        <span className={styles.metric}>{run.best.metric.toUpperCase()}</span>
                        <Interval estimate={best} unit={unit} scale={scale} color="accent" />
                      </span>
                    ) : (
                      <span className={styles.none}>–</span>
                    )}
                  </td>
                  <td className={styles.when}>{asked(run.requested_at_ms)}</td>
                  <td>
                    <code>{run.run_id}</code>
                  </td>
                </tr>
              )
            })}
          </tbody>
        </table>
      </div>
    </section>
  )
}

function Traces({ traces, total }: { readonly traces: readonly ListedTrace[]; readonly total: number }) {
  return (
    <section className={`panel ${styles.list}`} aria-labelledby="traces">
      <div className={styles.listHead}>
        <h2 id="traces">Traces</h2>
        <span className={styles.total}>{shownOf(traces.length, total)}</span>
      </div>
      <div className={styles.scroll} role="region" aria-label="Table of traces" tabIndex={0}>
        <table className={styles.table}>
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Provenance</th>
              <th scope="col">Status</th>
              <th scope="col">Model</th>
              <th scope="col">Source GPU</th>
              <th scope="col" className={styles.number}>
                Kernels
              </th>
              <th scope="col">Imported</th>
              <th scope="col">
                <span className="visually-hidden">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {traces.map((trace) => (
              <tr key={trace.trace_id}>
                <td className={styles.name}>
                  {trace.name ?? trace.trace_id}
                  {trace.reason && <span className={styles.reason} title={trace.reason}>{trace.reason}</span>}
                </td>
                <td>
                  <Provenance kind={provenanceOf(trace.provenance)} />
                </td>
                <td>
                  <Status word={trace.is_truncated ? 'truncated' : (STATUS[trace.status] ?? trace.status)} />
                </td>
                <td>{trace.model ?? <span className={styles.none}>not given</span>}</td>
                <td>{trace.source_gpu ? <code>{trace.source_gpu}</code> : <span className={styles.none}>none</span>}</td>
                <td className={styles.number}>{trace.kernels === null ? '–' : count(trace.kernels)}</td>
                <td className={styles.when}>{asked(trace.uploaded_at_ms)}</td>
                <td className={styles.actions}>
                  {trace.status === 'complete' && (
                    <Link to="/new" search={{ trace: trace.trace_id }} aria-label={`New run of ${trace.name ?? trace.trace_id}`}>
                      New run
                    </Link>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  )
}

const asked = (at: number | null) => (at === null ? '–' : dateAndClock(logMs(at), logMs(Date.now())))

const shownOf = (shown: number, total: number) => (shown === total ? counted(total, 'row') : `${count(shown)} of ${count(total)}`)
