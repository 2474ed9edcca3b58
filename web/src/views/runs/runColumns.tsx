import { Link } from '@tanstack/react-router'
import type { ListedRun } from '../../lib/api'
import { count, dateAndClock, MISSING, range, time, timeUnit } from '../../lib/format'
import { logMs, ms } from '../../lib/units'
import { provenanceOf, STATUS } from '../../lib/words'
import type { Column } from '../DataTable'
import { Interval, scaleOf } from '../Interval'
import { Provenance } from '../Provenance'
import { Status } from '../Status'
import styles from './runColumns.module.css'

/** A run in a row, wherever runs are listed; all of them on one scale. */
export function runColumns(runs: readonly ListedRun[]): readonly Column<ListedRun>[] {
  const estimateOf = ({ best }: ListedRun) => best && { value: ms(best.value), p10: ms(best.p10), p90: ms(best.p90) }
  const estimates = runs.map(estimateOf)
  const unit = timeUnit(estimates.flatMap((one) => (one ? [one.value] : [])))
  const scale = scaleOf(estimates)
  return [
    {
      id: 'trace',
      title: 'Trace',
      width: 200,
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
    { id: 'prov', title: 'Provenance', width: 160, sortBy: (run) => run.provenance, cell: (run) => <Provenance kind={provenanceOf(run.provenance)} /> },
    { id: 'status', title: 'Status', width: 108, sortBy: (run) => run.status, cell: (run) => <Status word={STATUS[run.status] ?? run.status} /> },
    { id: 'gpus', title: 'GPUs', width: 56, isNumber: true, sortBy: (run) => run.config_count, cell: (run) => count(run.config_count) },
    { id: 'fastest', title: 'Fastest', width: 116, sortBy: (run) => run.best?.gpu ?? null, cell: (run) => (run.best ? <code>{run.best.gpu}</code> : MISSING) },
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
    { id: 'asked', title: 'Asked', width: 104, isNumber: true, sortBy: (run) => run.requested_at_ms, cell: (run) => (run.requested_at_ms === null ? MISSING : dateAndClock(logMs(run.requested_at_ms), logMs(Date.now()))) },
    { id: 'run', title: 'Run', width: 84, sortBy: (run) => run.run_id, cell: (run) => <code title={run.run_id}>{run.run_id.slice(0, 8)}</code> },
  ]
}
