import { getRouteApi } from '@tanstack/react-router'
import { memo, useCallback, useEffect, useMemo } from 'react'
import { errorToken, familyShown, boundShown } from '../../lib/families'
import { count, counted, digits, MISSING, percent, range, rate, signedPercent, time, timeUnit, timeWithUnit } from '../../lib/format'
import { classOf, isHypothetical, letter } from '../../lib/gpus'
import { ms, ratio, type Estimate } from '../../lib/units'
import { infeasible, requestedConfigs, type Config, type Run } from '../../store/run'
import { Why } from '../accuracy/Why'
import { LogPlot, type Dot } from '../charts/LogPlot'
import { extent, type Scale } from '../charts/scales'
import { paintSparkline } from '../charts/sparkline'
import { StackedBars, type Stack } from '../charts/StackedBars'
import { DataTable, type Column } from '../DataTable'
import { GpuChip } from '../GpuChip'
import { InInspector, useInspector } from '../Inspector'
import { Interval, paintBand, scaleOf } from '../Interval'
import { Problem } from '../Problem'
import { useRun } from '../run/runContext'
import { Empty, Loading } from '../States'
import type { Sort } from '../sorting'
import { countFor, errorOf, familyRows, shares, shortKernel, type KernelRow } from './kernelRows'
import styles from './KernelsPage.module.css'
import { LaunchHistogram } from './LaunchHistogram'
import { useKernels } from './useKernels'

const route = getRouteApi('/runs/$runId/kernels')
const SHOWN_AT_ONCE = 8

/** Which few kernels are nearly all of the time, on every GPU at once. */
export function KernelsPage() {
  const { run } = useRun()
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const configs = useMemo(() => requestedConfigs(run).slice(0, SHOWN_AT_ONCE), [run])
  const possible = configs.findIndex((config) => infeasible(config) === '')
  const base = Math.max(0, possible)
  const { rows: tasks, isLoading, error, refetch } = useKernels(run, configs, base)
  const source = configs.findIndex(({ spec }) => spec.gpu.gpu === run.trace.sourceGpu && !isHypothetical(spec.label))
  const by = search.by ?? 'signature'
  const all = useMemo(() => (by === 'family' ? familyRows(tasks) : tasks), [tasks, by])
  const wanted = (search.q ?? '').toLowerCase()
  const rows = useMemo(
    () => (wanted === '' ? all : all.filter((row) => `${row.name} ${row.op} ${row.shape} ${familyShown(row.family).word}`.toLowerCase().includes(wanted))),
    [all, wanted],
  )
  const share = useMemo(() => shares(all, base), [all, base])
  const sort: Sort = { by: search.sort ?? 'total', isDescending: search.sort === undefined ? true : search.desc === true }
  const { setOpen } = useInspector()
  const selected = all.find(({ key }) => key === search.k)
  useEffect(() => {
    if (search.k !== undefined) setOpen(true)
  }, [search.k, setOpen])
  const choose = useCallback((key: string) => void navigate({ search: (before) => ({ ...before, k: key, why: undefined }), replace: true }), [navigate])
  const chooseRow = useCallback((row: KernelRow) => choose(row.key), [choose])
  const columns = useMemo(() => columnsOf(rows, configs, base, source, share), [rows, configs, base, source, share])
  const configOfWhy = configs.find(({ spec }) => spec.config_id === search.why) ?? configs[base]
  if (error) return <div className={styles.page}><Problem error={error} onRetry={refetch} /></div>
  const head = countFor(all, base, 0.99)
  return (
    <div className={styles.page}>
      <div className={styles.head}>
        <div className={styles.by} role="group" aria-label="Rows">
          {(['signature', 'family'] as const).map((one) => (
            <button
              key={one}
              type="button"
              className="button"
              aria-pressed={by === one}
              onClick={() => void navigate({ search: (before) => ({ ...before, by: one === 'signature' ? undefined : one, k: undefined }), replace: true })}
            >
              by {one}
            </button>
          ))}
        </div>
        <input
          className="field"
          type="search"
          aria-label="Filter kernels"
          placeholder="Filter by name, op, family"
          value={search.q ?? ''}
          onChange={(event) => void navigate({ search: (before) => ({ ...before, q: event.target.value || undefined }), replace: true })}
        />
        <p className={styles.sum}>
          {wanted === '' ? counted(all.length, by === 'family' ? 'family' : 'signature', by === 'family' ? 'families' : 'signatures') : `${count(rows.length)} of ${count(all.length)}`}
          {all.length > 0 && share.size > 0 && (
            <>
              {' '}· <strong>99 % of {configs[base] ? 'A’s' : 'the'} time in the top {head}</strong>
            </>
          )}
        </p>
      </div>
      {isLoading && all.length === 0 ? (
        <Loading words="Kernels" rows={12} height={420} />
      ) : (
        <div className={`panel ${styles.table}`}>
          <DataTable
            label={`Kernels by ${by}`}
            rows={rows}
            columns={columns}
            keyOf={(row) => row.key}
            sort={sort}
            onSort={(next) => void navigate({ search: (before) => ({ ...before, sort: next.by, desc: next.isDescending || undefined }), replace: true })}
            selected={search.k}
            onRow={chooseRow}
            maxHeight={420}
            empty={<Empty>{wanted === '' ? 'No kernel is known yet; rows come as the trace is read.' : `No kernel matches “${search.q ?? ''}”.`}</Empty>}
          />
        </div>
      )}
      <div className={styles.charts}>
        <section className="panel" aria-label="Roofline">
          <h2>Roofline {configs[base] && <GpuChip gpu={configs[base].spec.gpu} label={configs[base].spec.label} letter={letter(base)} />}</h2>
          <Roofline rows={rows} config={configs[base]} base={base} share={share} selected={search.k} onChoose={choose} />
        </section>
        <section className="panel" aria-label="Where time goes">
          <h2>Where time goes, per GPU</h2>
          <WhereTimeGoes run={run} rows={all} configs={configs} />
        </section>
      </div>
      {selected && (
        <InInspector title="Kernel">
          <KernelDetails traceId={run.trace.traceId} row={selected} configs={configs} source={source} onWhy={(config) => void navigate({ search: (before) => ({ ...before, why: config }), replace: true })} why={configOfWhy?.spec.config_id} />
        </InInspector>
      )}
      {selected?.taskId != null && configOfWhy && (
        <InInspector title="Why">
          <Why runId={run.runId} configId={configOfWhy.spec.config_id} taskId={selected.taskId} isRefined={configOfWhy.isRefined} />
        </InInspector>
      )}
    </div>
  )
}

// --- table ------------------------------------------------------------------------------------------------------------

function columnsOf(
  rows: readonly KernelRow[],
  configs: readonly Config[],
  base: number,
  source: number,
  share: ReturnType<typeof shares>,
): readonly Column<KernelRow>[] {
  const unit = timeUnit(rows.map((row) => ms((row.cells[base]?.duration ?? 0) / 1e6)))
  const totalUnit = timeUnit(rows.map((row) => ms((row.cells[base]?.total ?? 0) / 1e6)))
  const scale = scaleOf(rows.map((row) => estimateOf(row, base)))
  const color = configs[base] ? classOf(configs[base].spec.gpu) : 'other'
  return [
    {
      id: 'name',
      title: 'Kernel',
      width: 300,
      grows: true,
      isSticky: true,
      sortBy: (row) => row.name,
      cell: (row) => (
        <span className={styles.kernel} title={`${row.name} ${row.shape}`}>
          <span className={styles.dot} style={{ background: `var(--${familyShown(row.family).token})` }} aria-hidden="true" />
          <span className={row.taskId === null ? undefined : 'mono'}>{row.taskId === null ? familyShown(row.family).word : shortKernel(row.name)}</span>
          {row.shape !== '' && <span className={styles.shape}>{row.shape}</span>}
        </span>
      ),
    },
    { id: 'family', title: 'Family', width: 128, sortBy: (row) => row.family, cell: (row) => familyShown(row.family).word },
    { id: 'n', title: 'n', hint: 'Launches in the whole trace', width: 72, isNumber: true, sortBy: (row) => row.launchCount, cell: (row) => count(row.launchCount) },
    {
      id: 'time',
      title: `${letter(base)} time`,
      unit,
      hint: 'Of one launch, with its interval',
      width: 224,
      sortBy: (row) => row.cells[base]?.duration ?? null,
      cell: (row) => {
        const estimate = estimateOf(row, base)
        if (estimate === null) return <Missing cell={row.cells[base]} />
        return <Interval estimate={estimate} unit={unit} scale={scale} color={color} isBandless />
      },
      paint: (context, row, box, inked) => {
        const estimate = estimateOf(row, base)
        if (estimate !== null) paintBand(context, { estimate, scale, color }, box, inked)
      },
    },
    {
      id: 'total',
      title: `${letter(base)} total`,
      unit: totalUnit,
      width: 88,
      isNumber: true,
      sortBy: (row) => row.cells[base]?.total ?? null,
      cell: (row) => {
        const total = row.cells[base]?.total ?? Number.NaN
        return Number.isNaN(total) ? MISSING : time(ms(total / 1e6), totalUnit)
      },
    },
    {
      id: 'share',
      title: 'Share',
      width: 112,
      sortBy: (row) => share.get(row.key)?.share ?? null,
      cell: (row) => <ShareBar share={share.get(row.key)?.share ?? 0} />,
    },
    {
      id: 'cumulative',
      title: 'Cumulative',
      width: 92,
      isNumber: true,
      hint: 'Share of this and all longer ones',
      sortBy: (row) => share.get(row.key)?.cumulative ?? null,
      cell: (row) => percent(ratio(share.get(row.key)?.cumulative ?? 0)),
    },
    {
      id: 'bound',
      title: 'Bound by',
      width: 112,
      sortBy: (row) => row.cells[base]?.bound ?? null,
      cell: (row) => <Bound bound={row.cells[base]?.bound ?? ''} />,
    },
    {
      id: 'trend',
      title: 'Over steps',
      hint: `Time on ${letter(base)} in each forty-eighth of the trace`,
      width: 100,
      cell: (row) => <span className="visually-hidden">{`time over steps, ${row.trend.filter((value) => value > 0).length} of ${row.trend.length} parts`}</span>,
      paint: (context, row, box, inked) => {
        context.fillStyle = inked('text3')
        paintSparkline(context, row.trend, { ...box, y: box.y + 6, height: box.height - 12 })
      },
    },
    ...configs.flatMap((config, index) =>
      index === base
        ? []
        : [
            {
              id: `c${index}`,
              title: letter(index),
              unit: `÷ ${letter(base)}`,
              hint: config.spec.label,
              width: 76,
              isNumber: true,
              sortBy: (row: KernelRow) => ratioOf(row, index, base),
              cell: (row: KernelRow) => {
                const found = ratioOf(row, index, base)
                return Number.isNaN(found) ? (
                  <Missing cell={row.cells[index]} />
                ) : (
                  `${digits(found)}×`
                )
              },
              tone: (row: KernelRow) => toneOf(ratioOf(row, index, base) - 1),
            } satisfies Column<KernelRow>,
          ],
    ),
    {
      id: 'error',
      title: 'Error',
      hint: source < 0 ? 'Nothing was measured on any of these GPUs' : `Forward prediction against what was measured on ${letter(source)}`,
      width: 80,
      isNumber: true,
      sortBy: (row) => {
        const found = errorOf(row, source)
        return Number.isNaN(found) ? null : Math.abs(found)
      },
      cell: (row) => {
        const found = errorOf(row, source)
        return Number.isNaN(found) ? (
          <span title="not measured on any GPU of this run">{MISSING}</span>
        ) : (
          signedPercent(ratio(found))
        )
      },
      tone: (row) => toneOf(errorOf(row, source)),
    },
  ]
}

const toneOf = (change: number): string | undefined => (Number.isNaN(change) ? undefined : errorToken(change))

const ratioOf = (row: KernelRow, config: number, base: number): number =>
  (row.cells[config]?.duration ?? Number.NaN) / (row.cells[base]?.duration ?? Number.NaN)

function estimateOf(row: KernelRow, config: number): Estimate | null {
  const cell = row.cells[config]
  if (cell === undefined || Number.isNaN(cell.duration)) return null
  return { value: ms(cell.duration / 1e6), p10: ms(cell.p10 / 1e6), p90: ms(cell.p90 / 1e6) }
}

function Missing({ cell }: { readonly cell: KernelRow['cells'][number] | undefined }) {
  return <span title={cell?.isFailed ? cell.reason !== '' ? cell.reason : 'could not be simulated' : 'not simulated yet'}>{cell?.isFailed ? 'failed' : MISSING}</span>
}

function ShareBar({ share }: { readonly share: number }) {
  return (
    <span className={styles.share}>
      <span style={{ width: `${Math.max(share * 100, share > 0 ? 1 : 0)}%` }} aria-hidden="true" />
      <b>{percent(ratio(share))}</b>
    </span>
  )
}

function Bound({ bound }: { readonly bound: string }) {
  if (bound === '') return <>{MISSING}</>
  const { word, token } = boundShown(bound)
  return (
    <span className={styles.kernel}>
      <span className={styles.square} style={{ background: `var(--${token})` }} aria-hidden="true" />
      {word}
    </span>
  )
}

// --- charts -----------------------------------------------------------------------------------------------------------

/** Remembered, as the other chart: a table that is sorted leaves both as they are. */
const Roofline = memo(RooflineOf)

function RooflineOf(props: {
  readonly rows: readonly KernelRow[]
  readonly config: Config | undefined
  readonly base: number
  readonly share: ReturnType<typeof shares>
  readonly selected: string | undefined
  readonly onChoose: (key: string) => void
}) {
  const { rows, config, base, share, selected, onChoose } = props
  const gpu = config?.spec.gpu
  const dots = useMemo(() => rows.flatMap((row) => dotOf(row, base, share)), [rows, base, share])
  const domain = useMemo(() => {
    const [low, high] = extent(dots.map(({ x }) => x))
    const ridge = gpu ? gpu.bf16_flop_per_s / gpu.dram_bytes_per_s : high
    return [low, Math.max(high, ridge * 4)] as const
  }, [dots, gpu])
  const rates = useMemo(() => {
    const [low, high] = extent(dots.map(({ y }) => y))
    return [low, Math.max(high, (gpu?.bf16_flop_per_s ?? high) * 1.5)] as const
  }, [dots, gpu])
  if (dots.length === 0) return <Empty>No kernel here is known to compute anything yet.</Empty>
  return (
    <LogPlot
      label={`Roofline of ${config?.spec.label ?? ''}`}
      height={300}
      x={{ words: 'FLOP per byte →', domain, say: (value) => digits(value) }}
      y={{ words: 'FLOP/s reached', domain: rates, say: (value) => rate(value, '').replace('/s', '').trim() }}
      dots={dots}
      selected={selected}
      onDot={onChoose}
      lines={(x, y) => gpu && <Roof x={x} y={y} domain={domain} rates={rates} peak={gpu.bf16_flop_per_s} bandwidth={gpu.dram_bytes_per_s} />}
    />
  )
}

function dotOf(row: KernelRow, base: number, share: ReturnType<typeof shares>): readonly Dot[] {
  const duration = row.cells[base]?.duration ?? Number.NaN
  if (!(row.flop > 0) || !(row.movedBytes > 0) || !(duration > 0)) return []
  const part = share.get(row.key)?.share ?? 0
  const reached = row.flop / (duration / 1e9)
  return [
    {
      key: row.key,
      x: row.flop / row.movedBytes,
      y: reached,
      size: 3 + Math.sqrt(part) * 22,
      token: familyShown(row.family).token,
      words: `${shortKernel(row.name)}: ${rate(reached, 'FLOP')} at ${digits(row.flop / row.movedBytes)} FLOP per byte, ${timeWithUnit(ms(duration / 1e6))} each, ${percent(ratio(part))} of the time`,
    },
  ]
}

function Roof(props: {
  readonly x: Scale
  readonly y: Scale
  readonly domain: readonly [number, number]
  readonly rates: readonly [number, number]
  readonly peak: number
  readonly bandwidth: number
}) {
  const { x, y, domain, rates, peak, bandwidth } = props
  const ridge = peak / bandwidth
  const start = Math.max(domain[0], rates[0] / bandwidth)
  return (
    <g>
      <path d={`M${x.at(start)} ${y.at(start * bandwidth)}L${x.at(ridge)} ${y.at(peak)}H${x.at(domain[1])}`} stroke="var(--text2)" strokeWidth="1.5" fill="none" />
      <text x={x.at(domain[1]) - 4} y={y.at(peak) - 5} textAnchor="end" className={styles.roof}>
        bf16 {rate(peak, 'FLOP')}
      </text>
      <text x={x.at(Math.sqrt(start * ridge)) - 8} y={y.at(Math.sqrt(start * ridge) * bandwidth) - 8} textAnchor="end" className={styles.roof}>
        DRAM {rate(bandwidth, 'B')}
      </text>
    </g>
  )
}

const known = (value: number | undefined): number => (value === undefined || Number.isNaN(value) ? 0 : value)

const WhereTimeGoes = memo(WhereTimeGoesOf)

function WhereTimeGoesOf({ run, rows, configs }: { readonly run: Run; readonly rows: readonly KernelRow[]; readonly configs: readonly Config[] }) {
  const stacks = useMemo(() => {
    const families = [...familyRows(rows)].sort((a, b) => known(b.cells[0]?.total) - known(a.cells[0]?.total))
    return configs.map((config, index): Stack => {
      const whole = families.reduce((sum, row) => sum + known(row.cells[index]?.total), 0)
      return {
        key: config.spec.config_id,
        label: <GpuChip gpu={config.spec.gpu} label={config.spec.label} letter={letter(index)} />,
        words: config.spec.label,
        total: infeasible(config) !== '' ? 'infeasible' : whole > 0 ? timeWithUnit(ms(whole / 1e6)) : MISSING,
        parts: families.map((row) => ({
          key: row.key,
          word: familyShown(row.family).word,
          token: familyShown(row.family).token,
          value: known(row.cells[index]?.total),
          said: `${timeWithUnit(ms(known(row.cells[index]?.total) / 1e6))}, ${percent(ratio(whole > 0 ? known(row.cells[index]?.total) / whole : 0))}`,
        })),
      }
    })
  }, [rows, configs])
  if (run.trace.tasks.size === 0) return <Empty>Nothing is traced yet.</Empty>
  return <StackedBars label="Kernel time per GPU by family" stacks={stacks} />
}

// --- one kernel -------------------------------------------------------------------------------------------------------

function KernelDetails(props: {
  readonly traceId: string
  readonly row: KernelRow
  readonly configs: readonly Config[]
  readonly source: number
  readonly why: string | undefined
  readonly onWhy: (configId: string) => void
}) {
  const { traceId, row, configs, source, why, onWhy } = props
  const estimates = configs.map((_, index) => estimateOf(row, index))
  const unit = timeUnit(estimates.flatMap((one) => (one === null ? [] : [one.value])))
  const scale = scaleOf(estimates)
  return (
    <div className={styles.details}>
      <code>{row.name}</code>
      <p>
        {familyShown(row.family).word}
        {row.op !== '' && ` · ${row.op}`}
        {row.shape !== '' && ` · ${row.shape}`} · {counted(row.launchCount, 'launch', 'launches')}
        {row.flop > 0 && ` · ${rate(row.flop, 'FLOP').replace('/s', '')}`}
        {row.movedBytes > 0 && ` · ${rate(row.movedBytes, 'B').replace('/s', '')}`}
        {!Number.isNaN(row.measured) && ` · measured ${timeWithUnit(ms(row.measured / 1e6))}`}
      </p>
      <ul>
        {configs.map((config, index) => {
          const estimate = estimates[index] ?? null
          const error = index === source ? errorOf(row, source) : Number.NaN
          return (
            <li key={config.spec.config_id}>
              <GpuChip gpu={config.spec.gpu} label={config.spec.label} letter={letter(index)} hasLabel />
              <Bound bound={row.cells[index]?.bound ?? ''} />
              {estimate ? (
                <span className={styles.detailTime}>
                  <Interval estimate={estimate} unit={unit} scale={scale} color={classOf(config.spec.gpu)} />
                </span>
              ) : (
                <span className={styles.detailTime}>{infeasible(config) === '' ? <Missing cell={row.cells[index]} /> : infeasible(config)}</span>
              )}
              {!Number.isNaN(error) && <span className={styles.detailError}>{signedPercent(ratio(error))} forward</span>}
              {row.taskId !== null && estimate && (
                <button type="button" className="button quiet" aria-pressed={why === config.spec.config_id} aria-label={`Why ${range(estimate.p10, estimate.p90, unit)} on ${config.spec.label}`} onClick={() => onWhy(config.spec.config_id)}>
                  Why
                </button>
              )}
            </li>
          )
        })}
      </ul>
      {row.taskId !== null && <LaunchHistogram traceId={traceId} taskId={row.taskId} forward={row.cells[source]?.forward ?? Number.NaN} />}
    </div>
  )
}
