import { useQuery } from '@tanstack/react-query'
import { getRouteApi } from '@tanstack/react-router'
import { lazy, Suspense, useMemo } from 'react'
import { count, counted, MISSING, percent, timeUnit } from '../../lib/format'
import { classOf, letter } from '../../lib/gpus'
import { screens } from '../../lib/screens'
import { assumptionSentence, DEFINITION } from '../../lib/words'
import { infeasible, isOver, METRICS, metricOf, reasonFor, requestedConfigs, type Config, type Metric, type Run } from '../../store/run'
import { DataTable, type Column } from '../DataTable'
import { GpuChip } from '../GpuChip'
import { Interval, scaleOf } from '../Interval'
import { useRun } from '../run/runContext'
import { Empty, Loading } from '../States'
import type { Sort } from '../sorting'
import styles from './PredictionsPage.module.css'

const Curve = lazy(async () => ({ default: (await import('./Curve')).Curve }))
const route = getRouteApi('/runs/$runId/predictions')

const NAMES: Readonly<Record<Metric, string>> = {
  kernel: 'Kernel time',
  prefill: 'Prefill step',
  decode: 'Decode step',
  ttft: 'TTFT',
  tpot: 'TPOT',
}

/** TTFT and TPOT per GPU with their intervals, the steps they are made of, and how they grow. */
export function PredictionsPage() {
  const { run } = useRun()
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const axis = search.metric === 'batch' ? 'batch' : 'context'
  return (
    <div className={styles.page}>
      <p className={styles.definition}>{DEFINITION}</p>
      <Answers run={run} />
      <section className={`panel ${styles.section}`} aria-labelledby="curve-title">
        <div className={styles.head}>
          <h2 id="curve-title">A decode step over</h2>
          <div role="group" aria-label="Over" className={styles.switch}>
            {(['context', 'batch'] as const).map((one) => (
              <button
                key={one}
                type="button"
                className="button"
                aria-pressed={axis === one}
                onClick={() => void navigate({ search: (before) => ({ ...before, metric: one === 'context' ? undefined : one }), replace: true })}
              >
                {one}
              </button>
            ))}
          </div>
        </div>
        <Curves run={run} axis={axis} />
      </section>
      <Steps run={run} />
      <Assumptions run={run} />
    </div>
  )
}

function Answers({ run }: { readonly run: Run }) {
  const configs = requestedConfigs(run)
  const columns = useMemo(() => answerColumns(run, configs), [run, configs])
  return (
    <div className={`panel ${styles.table}`}>
      <DataTable
        label="Predictions per GPU"
        rows={configs}
        columns={columns}
        keyOf={(config) => config.spec.config_id}
        rowPx={44}
        maxHeight={560}
        empty={<Empty>No GPU was asked about yet.</Empty>}
      />
    </div>
  )
}

function answerColumns(run: Run, configs: readonly Config[]): readonly Column<Config>[] {
  return [
    {
      id: 'gpu',
      title: 'GPU',
      width: 212,
      isSticky: true,
      grows: true,
      cell: (config) => <GpuChip gpu={config.spec.gpu} label={config.spec.label} letter={letter(configs.indexOf(config))} hasLabel />,
    },
    ...METRICS.map((metric): Column<Config> => {
      const estimates = configs.map((config) => metricOf(config, metric))
      const unit = timeUnit(estimates.flatMap((one) => (one === null ? [] : [one.value])))
      const scale = scaleOf(estimates)
      return {
        id: metric,
        title: NAMES[metric],
        unit,
        width: 172,
        cell: (config) => {
          const estimate = metricOf(config, metric)
          if (estimate !== null) return <Interval estimate={estimate} unit={unit} scale={scale} color={classOf(config.spec.gpu)} />
          const reason = reasonFor(config, metric, isOver(run))
          return <span className={styles.missing} title={reason}>{infeasible(config) === '' ? `${MISSING} ${reason}` : `INFEASIBLE: ${reason}`}</span>
        },
      }
    }),
    {
      id: 'coverage',
      title: 'Coverage',
      hint: 'Share of measured source time that was simulated rather than extrapolated',
      width: 88,
      isNumber: true,
      cell: (config) =>
        config.accuracy === null || infeasible(config) !== '' ? (
          MISSING
        ) : (
          <span className={config.accuracy.coverage < 0.9 ? 'chip' : undefined}>{percent(config.accuracy.coverage)}</span>
        ),
    },
  ]
}

// --- curves -----------------------------------------------------------------------------------------------------------

function Curves({ run, axis }: { readonly run: Run; readonly axis: 'context' | 'batch' }) {
  const isWhole = run.trace.status === 'complete'
  const found = useQuery({
    queryKey: ['curves', run.runId, axis, isWhole],
    queryFn: () => screens.curves(run.runId, axis),
    enabled: isWhole,
    staleTime: Infinity,
  })
  if (!isWhole) return <Empty>Curves come once the trace is whole.</Empty>
  if (found.error) return <p className={styles.note}>{found.error.message}.</p>
  if (found.data === undefined) return <Loading words="Curves" rows={8} height={340} />
  const configs = requestedConfigs(run)
  return (
    <Suspense fallback={<Loading words="Curves" rows={8} height={340} />}>
      <Curve
        curves={found.data}
        configs={found.data.configs.map((curve) => {
          const at = configs.findIndex(({ spec }) => spec.config_id === curve.config_id)
          return { letter: letter(Math.max(0, at)), spec: configs[at]?.spec ?? null }
        })}
      />
    </Suspense>
  )
}

// --- steps ------------------------------------------------------------------------------------------------------------

interface StepRow {
  readonly step: number
  readonly phase: string
  readonly requests: number | null
  readonly tokens: number | null
  readonly times: readonly (ReturnType<typeof metricOf>)[]
}

function Steps({ run }: { readonly run: Run }) {
  const configs = requestedConfigs(run).slice(0, 8)
  const rows = useMemo(() => stepRows(run, configs), [run, configs])
  const sort: Sort = { by: 'step', isDescending: false }
  const columns = useMemo(() => stepColumns(rows, configs), [rows, configs])
  return (
    <section className={styles.steps} aria-labelledby="steps-title">
      <h2 id="steps-title">
        Steps <span>{counted(rows.length, 'step')}, as the engine ran them</span>
      </h2>
      <div className={`panel ${styles.table}`}>
        <DataTable label="Steps" rows={rows} columns={columns} keyOf={(row) => String(row.step)} rowPx={40} sort={sort} maxHeight={440} empty={<Empty>No step is predicted yet.</Empty>} />
      </div>
    </section>
  )
}

function stepRows(run: Run, configs: readonly Config[]): readonly StepRow[] {
  const steps = [...new Set(configs.flatMap((config) => (config.steps ?? []).map(({ step }) => step)))].sort((a, b) => a - b)
  const byStep = configs.map((config) => new Map((config.steps ?? []).map((one) => [one.step, one])))
  return steps.map((step) => {
    const traced = run.trace.steps.get(step)
    return {
      step,
      phase: byStep.map((found) => found.get(step)?.phase).find((phase) => phase !== undefined) ?? '',
      requests: traced?.generationRequests ?? null,
      tokens: traced?.contextTokens ?? null,
      times: byStep.map((found) => found.get(step)?.duration ?? null),
    }
  })
}

function stepColumns(rows: readonly StepRow[], configs: readonly Config[]): readonly Column<StepRow>[] {
  const all = rows.flatMap((row) => row.times)
  const unit = timeUnit(all.flatMap((one) => (one === null ? [] : [one.value])))
  const scale = scaleOf(all)
  return [
    { id: 'step', title: 'Step', width: 64, isNumber: true, isSticky: true, cell: (row) => count(row.step) },
    { id: 'phase', title: 'Phase', width: 88, cell: (row) => row.phase },
    { id: 'tokens', title: 'Prompt tokens', width: 112, isNumber: true, cell: (row) => (row.tokens === null ? MISSING : count(row.tokens)) },
    { id: 'requests', title: 'Decoding', width: 88, isNumber: true, hint: 'Requests with one new token in this step', cell: (row) => (row.requests === null ? MISSING : count(row.requests)) },
    ...configs.map((config, index): Column<StepRow> => ({
      id: config.spec.config_id,
      title: letter(index),
      unit,
      hint: config.spec.label,
      width: 184,
      grows: true,
      cell: (row) => {
        const estimate = row.times[index] ?? null
        return estimate === null ? MISSING : <Interval estimate={estimate} unit={unit} scale={scale} color={classOf(config.spec.gpu)} />
      },
    })),
  ]
}

function Assumptions({ run }: { readonly run: Run }) {
  const names = [...new Set(run.configs.flatMap(({ assumptions }) => assumptions))]
  if (names.length === 0) return null
  return (
    <section aria-labelledby="assumptions-title">
      <h2 id="assumptions-title">Assumptions</h2>
      <ul className={styles.assumptions}>
        {names.map((name) => (
          <li key={name}>{assumptionSentence(name)}</li>
        ))}
      </ul>
    </section>
  )
}
