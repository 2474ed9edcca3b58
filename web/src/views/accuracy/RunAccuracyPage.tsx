import { useQuery } from '@tanstack/react-query'
import { getRouteApi } from '@tanstack/react-router'
import { useEffect, useMemo } from 'react'
import { familyShown } from '../../lib/families'
import { count, counted, MISSING, percent, signedPercent, timeWithUnit } from '../../lib/format'
import { isHypothetical, letter } from '../../lib/gpus'
import { screens, type KnownError } from '../../lib/screens'
import { ms, ratio, type Ratio } from '../../lib/units'
import { infeasible, requestedConfigs, type Config, type Run } from '../../store/run'
import { LogPlot, type Dot } from '../charts/LogPlot'
import { extent, type Scale } from '../charts/scales'
import styles from '../charts/charts.module.css'
import { DataTable, type Column } from '../DataTable'
import { GpuChip } from '../GpuChip'
import { InInspector, useInspector } from '../Inspector'
import { shortKernel, type KernelRow } from '../kernels/kernelRows'
import { useKernels } from '../kernels/useKernels'
import { Problem } from '../Problem'
import { useRun } from '../run/runContext'
import { Empty, Loading } from '../States'
import page from './RunAccuracyPage.module.css'
import { Why } from './Why'

const route = getRouteApi('/runs/$runId/accuracy')

/** How wrong the forward prediction was, where a clock says so; and what each number is made of. */
export function RunAccuracyPage() {
  const { run } = useRun()
  const search = route.useSearch()
  const navigate = route.useNavigate()
  // The source GPU is simulated even where nobody asked about it: the error is measured there.
  const configs = run.configs
  const source = configs.findIndex(({ spec }) => spec.gpu.gpu === run.trace.sourceGpu && !isHypothetical(spec.label))
  const shownConfigs = useMemo(() => (source < 0 ? [] : [configs[source]].filter((config) => config !== undefined)), [configs, source])
  const { rows, isLoading, error, refetch } = useKernels(run, shownConfigs, 0)
  const families = useMemo(() => [...new Set(rows.map(({ family }) => family))].sort(), [rows])
  const compared = useMemo(
    () => rows.filter((row) => row.measured > 0 && (row.cells[0]?.forward ?? 0) > 0 && (search.family === undefined || row.family === search.family)),
    [rows, search.family],
  )
  const known = useQuery({
    queryKey: ['known-errors', run.runId, requestedConfigs(run).filter(({ accuracy }) => accuracy !== null).length],
    queryFn: () => screens.knownErrors(run.runId),
    placeholderData: (before) => before,
    staleTime: Infinity,
    enabled: requestedConfigs(run).length > 0,
  })
  const nearBy = useMemo(() => new Map((known.data ?? []).map((one) => [one.config_id, one])), [known.data])
  const { setOpen } = useInspector()
  const [whyConfig, whyTask] = (search.why ?? '').split('.')
  useEffect(() => {
    if (search.why !== undefined) setOpen(true)
  }, [search.why, setOpen])
  const sourceConfig = configs[source]
  const choose = (task: string) =>
    sourceConfig && void navigate({ search: (before) => ({ ...before, why: `${sourceConfig.spec.config_id}.${task}` }), replace: true })
  return (
    <div className={page.page}>
      <p className={page.about}>
        Errors are of the <strong>forward prediction</strong>, which knows no measured time, on the GPU the trace was recorded on. The
        corrected numbers that other tabs show are closer, and are never compared with what corrected them.
      </p>
      <div className={`panel ${page.table}`}>
        <DataTable
          label="Error per GPU"
          rows={requestedConfigs(run)}
          columns={columnsOf(run, nearBy)}
          keyOf={(config) => config.spec.config_id}
          rowPx={40}
          maxHeight={400}
          empty={<Empty>No GPU was asked about yet.</Empty>}
        />
      </div>
      <section className={`panel ${page.scatter}`} aria-labelledby="scatter-title">
        <div className={page.head}>
          <h2 id="scatter-title">Simulated beside measured</h2>
          {sourceConfig && <GpuChip gpu={sourceConfig.spec.gpu} label={sourceConfig.spec.label} {...letterOf(run, sourceConfig)} />}
          <select
            className="field"
            aria-label="Family"
            value={search.family ?? ''}
            onChange={(event) => void navigate({ search: (before) => ({ ...before, family: event.target.value || undefined }), replace: true })}
          >
            <option value="">All families</option>
            {families.map((family) => (
              <option key={family} value={family}>
                {familyShown(family).word}
              </option>
            ))}
          </select>
          {compared.length > 0 && <span className={page.count}>{counted(compared.length, 'kernel')}; a click says why</span>}
        </div>
        {error ? (
          <Problem error={error} onRetry={refetch} />
        ) : source < 0 ? (
          <Empty>
            {run.trace.provenance === 'measured'
              ? 'The GPU this trace was recorded on is not known here: nothing can be compared. Import it with its source GPU.'
              : 'No GPU time is in this trace: it was not recorded on a GPU. Errors of the same kernels where they were measured are on the Accuracy page.'}
          </Empty>
        ) : isLoading && compared.length === 0 ? (
          <Loading words="Kernels" rows={8} height={400} />
        ) : compared.length === 0 ? (
          <Empty>No kernel has both a measured and a simulated time yet.</Empty>
        ) : (
          <Scatter rows={compared} selected={whyTask} onChoose={choose} />
        )}
      </section>
      {whyConfig !== undefined && whyTask !== undefined && whyTask !== '' && (
        <InInspector title="Why">
          <Why runId={run.runId} configId={whyConfig} taskId={whyTask} />
        </InInspector>
      )}
    </div>
  )
}

const letterOf = (run: Run, config: Config) => {
  const at = requestedConfigs(run).indexOf(config)
  return at < 0 ? {} : { letter: letter(at) }
}

const KIN: Readonly<Record<NonNullable<KnownError['kin']>, string>> = {
  same: 'this GPU',
  same_die: 'the same die',
  same_capability: 'the same capability',
  same_class: 'its class',
  other_class: 'another class',
}

/** What was measured of the run's kinds of kernels, on this GPU or on the one nearest to it: never a blank, never 0 %. */
function Nearest({ known }: { readonly known: KnownError | undefined }) {
  if (known === undefined) return <>{MISSING}</>
  if (known.nearest === null || known.kin === null || known.mean_ape === null) return <>none of these kernels was measured anywhere</>
  return (
    <span className={page.nearest}>
      <b>
        {known.kin === 'same' ? '' : 'nearest: '}
        <code>{known.nearest}</code> {percent(ratio(known.mean_ape))}
      </b>
      <span>
        n = {count(known.row_count)}, {KIN[known.kin]}
      </span>
    </span>
  )
}

/** How often a measured time fell between p10 and p90, beside how often it should. */
function Coverage({ known }: { readonly known: KnownError | undefined }) {
  if (known?.coverage == null) return <span title="no interval was tested on GPUs of this class">{MISSING}</span>
  const { coverage, nominal_coverage: nominal } = known
  const words = `${percent(ratio(coverage))} of ${count(known.coverage_row_count)} measured times on GPUs of this class fell between p10 and p90; ${percent(ratio(nominal))} should`
  return (
    <span className={page.strip} role="img" aria-label={words} title={words}>
      <svg width="96" height="14" aria-hidden="true">
        <rect x="0" y="4" width="96" height="6" rx="3" className={page.track} />
        <rect x="0" y="4" width={96 * coverage} height="6" rx="3" className={coverage < nominal - 0.1 ? page.low : page.held} />
        <rect x={96 * nominal - 1} y="0" width="2" height="14" className={page.nominal} />
      </svg>
      {percent(ratio(coverage))}
    </span>
  )
}

function columnsOf(run: Run, known: ReadonlyMap<string, KnownError>): readonly Column<Config>[] {
  const configs = requestedConfigs(run)
  const share = (id: string, title: string, hint: string, of: (config: Config) => Ratio | null, isSigned = false): Column<Config> => ({
    id,
    title,
    hint,
    width: 84,
    isNumber: true,
    cell: (config) => {
      const value = config.accuracy === null || infeasible(config) !== '' ? null : of(config)
      if (value === null) return <span title={config.accuracy?.reason}>{MISSING}</span>
      return isSigned ? signedPercent(value) : percent(value)
    },
  })
  return [
    {
      id: 'gpu',
      title: 'GPU',
      width: 200,
      isSticky: true,
      grows: true,
      cell: (config) => <GpuChip gpu={config.spec.gpu} label={config.spec.label} letter={letter(configs.indexOf(config))} hasLabel />,
    },
    { id: 'n', title: 'n', hint: 'Kernels with both times', width: 72, isNumber: true, cell: (config) => (config.accuracy?.kernelCount ? count(config.accuracy.kernelCount) : MISSING) },
    share('median', 'Median', 'Median of |forward − measured| ÷ measured', ({ accuracy }) => accuracy?.median ?? null),
    share('mean', 'Mean', 'Mean of the same', ({ accuracy }) => accuracy?.mean ?? null),
    share('weighted', 'Weighted', 'Sum of differences ÷ sum of measured times', ({ accuracy }) => accuracy?.weighted ?? null),
    share('total', 'Total', 'Signed error of the sum', ({ accuracy }) => accuracy?.total ?? null, true),
    share('roofline', 'Roofline', 'Mean error of the datasheet baseline on the same kernels', ({ accuracy }) => accuracy?.roofline ?? null),
    share('coverage', 'Coverage', 'Share of measured source time that was simulated rather than extrapolated', ({ accuracy }) => accuracy?.coverage ?? null),
    {
      id: 'near',
      title: 'Where it was measured',
      hint: 'Mean error of the forward prediction on kernels of these kinds, in the build’s error map, weighted by the time each takes in this run',
      width: 232,
      cell: (config) => <Nearest known={known.get(config.spec.config_id)} />,
    },
    {
      id: 'held',
      title: 'Intervals held',
      hint: 'Of measured times in the build’s error map the share between p10 and p90; the mark is the 80 % that should be',
      width: 160,
      cell: (config) => <Coverage known={known.get(config.spec.config_id)} />,
    },
    {
      id: 'reason',
      title: 'In this trace',
      width: 220,
      grows: true,
      cell: (config) => {
        if (infeasible(config) !== '') return `INFEASIBLE: ${infeasible(config)}`
        if (config.accuracy === null) return 'not predicted yet'
        return config.accuracy.reason === '' ? 'measured here' : config.accuracy.reason
      },
    },
  ]
}

// --- scatter ----------------------------------------------------------------------------------------------------------

function Scatter({ rows, selected, onChoose }: { readonly rows: readonly KernelRow[]; readonly selected: string | undefined; readonly onChoose: (task: string) => void }) {
  const dots = useMemo(() => {
    const whole = rows.reduce((sum, row) => sum + row.measured * row.launchCount, 0)
    return rows.map((row): Dot => {
      const forward = row.cells[0]?.forward ?? Number.NaN
      const share = (row.measured * row.launchCount) / whole
      return {
        key: row.key,
        x: row.measured / 1e3,
        y: forward / 1e3,
        size: 3.5 + Math.sqrt(share) * 18,
        token: familyShown(row.family).token,
        words: `${shortKernel(row.name)}: ${timeWithUnit(ms(forward / 1e6))} simulated, ${timeWithUnit(ms(row.measured / 1e6))} measured, ${signedPercent(((forward - row.measured) / row.measured) as Ratio)}, ${count(row.launchCount)} launches`,
      }
    })
  }, [rows])
  const domain = useMemo(() => extent(dots.flatMap(({ x, y }) => [x, y]), 1.5), [dots])
  const say = (value: number) => timeWithUnit(ms(value / 1e3))
  return (
    <LogPlot
      label="Simulated against measured time of each kernel"
      height={440}
      x={{ words: 'measured →', domain, say }}
      y={{ words: 'simulated, forward', domain, say }}
      dots={dots}
      selected={selected}
      onDot={onChoose}
      lines={(x, y) => <Guides x={x} y={y} domain={domain} />}
    />
  )
}

/** Equal, and ten per cent to either side. */
function Guides({ x, y, domain }: { readonly x: Scale; readonly y: Scale; readonly domain: readonly [number, number] }) {
  const [low, high] = domain
  const line = (factor: number) => {
    const [from, to] = [Math.max(low, low / factor), Math.min(high, high / factor)]
    return `M${x.at(from)} ${y.at(from * factor)}L${x.at(to)} ${y.at(to * factor)}`
  }
  return (
    <g>
      <path d={line(1)} className={styles.guide} />
      <path d={line(1.1)} className={`${styles.guide} ${styles.dashed}`} />
      <path d={line(1 / 1.1)} className={`${styles.guide} ${styles.dashed}`} />
      <text x={x.at(high) - 8} y={y.at(high) + 28} textAnchor="end" className={styles.guideWords}>
        equal, ±10 %
      </text>
    </g>
  )
}
