import { memo, type CSSProperties } from 'react'
import { counted, range, time, timeUnit, timeWithUnit } from '../../lib/format'
import { CLASS_WORD, classOf, isHypothetical, letter, shortName } from '../../lib/gpus'
import { unreachable } from '../../lib/unreachable'
import { ms, type Ms, type Ratio } from '../../lib/units'
import { headlineMetric, infeasible, isOver, METRICS, metricOf, progress, reasonFor, requestedConfigs, shareDone, type Config, type Metric, type Run } from '../../store/run'
import { GpuChip } from '../GpuChip'
import { Band, scaleOf } from '../Interval'
import styles from './Tiles.module.css'

const NAMES: Readonly<Record<Metric, string>> = {
  kernel: 'Kernel time',
  prefill: 'Prefill step',
  decode: 'Decode step',
  ttft: 'TTFT',
  tpot: 'TPOT',
}

/** From so many configs on they are rows, since tiles would fill screens. */
const ROWS_FROM = 64

export interface Going {
  /** Weight of each task in the ring; null: not known yet. */
  readonly weights: ReadonlyMap<string, number> | null
  /** Seconds left by what came in so far, by config id. */
  readonly etas: ReadonlyMap<string, number>
}

/** One tile per config, in fixed slots: they fill and never move. */
export function Tiles({ run, going }: { readonly run: Run; readonly going: Going }) {
  const headline = headlineMetric(run)
  const configs = requestedConfigs(run)
  const scale = scaleOf(configs.map((config) => metricOf(config, headline)))
  const isMany = configs.length >= ROWS_FROM
  const One = isMany ? Row : Tile
  return (
    <ul
      className={isMany ? styles.rows : styles.tiles}
      aria-label="Configs"
      style={{ '--columns': columnsOf(configs.length) } as CSSProperties}
    >
      {configs.map((config, index) => {
        const { done, total } = progress(run, config)
        return (
          <One
            key={config.spec.config_id}
            config={config}
            name={letter(index)}
            headline={headline}
            scale={scale}
            isRunOver={isOver(run)}
            done={done}
            total={total}
            share={shareDone(run, config, going.weights)}
            foot={footOf(run, config, done, total, going.etas.get(config.spec.config_id))}
            refining={refiningOf(run, config)}
          />
        )
      })}
    </ul>
  )
}

/** Eight are two rows of four, not five and three. */
const columnsOf = (count: number) => (count <= 6 ? Math.max(4, count) : Math.min(6, Math.ceil(count / Math.ceil(count / 6))))

/** Nothing of the whole run: while one scrubs, only tiles of which something changed are rendered. */
interface TileProps {
  readonly config: Config
  readonly name: string
  readonly headline: Metric
  readonly scale: Ms
  readonly isRunOver: boolean
  readonly done: number
  readonly total: number
  readonly share: Ratio
  readonly foot: string
  /** How far the refinement of its kernels is; '' where none are refined. */
  readonly refining: string
}

/** The same in one line. */
const Row = memo(function Row({ config, name, headline, scale, isRunOver, done, total, share, foot, refining }: TileProps) {
  const { gpu, label } = config.spec
  const estimate = metricOf(config, headline)
  const unit = timeUnit(estimate ? [estimate.value] : [])
  const isOut = infeasible(config) !== ''
  return (
    <li className={`panel ${styles.one}`} data-config={label}>
      <GpuChip gpu={gpu} label={label} letter={name} hasLabel />
      <Ring done={done} total={total} share={share} />
      <span className={styles.metric}>{NAMES[headline]}</span>
      <span>
        {isOut ? (
          <strong title={infeasible(config)}>INFEASIBLE</strong>
        ) : estimate ? (
          <>
            <strong>{time(estimate.value, unit)}</strong> {unit}
            <span className={styles.range}>{range(estimate.p10, estimate.p90, unit)}</span>
          </>
        ) : (
          <Nothing config={config} metric={headline} isRunOver={isRunOver} />
        )}
      </span>
      <span>{estimate && <Band estimate={estimate} scale={scale} color={classOf(gpu)} />}</span>
      <span className={styles.foot} title={config.refinement?.sentence}>
        {foot}
        {refining !== '' && ` · ${refining}`}
      </span>
    </li>
  )
})

const Tile = memo(function Tile({ config, name, headline, scale, isRunOver, done, total, share, foot, refining }: TileProps) {
  const { gpu, label } = config.spec
  const gpuClass = classOf(gpu)
  const isVariant = isHypothetical(label)
  return (
    <li
      className={`panel ${styles.tile} ${isVariant ? styles.variant : ''}`}
      style={{ borderLeftColor: `var(--${isVariant ? 'hypothetical' : gpuClass})` }}
      data-config={label}
    >
      <div className={styles.head}>
        <span className={styles.letter} aria-hidden="true">
          {name}
        </span>
        <div className={styles.names}>
          <h2 className={styles.name}>
            <span className="visually-hidden">{name}: </span>
            {shortName(gpu)}
            {isVariant && '*'}
          </h2>
          <code className={styles.label} title={label}>
            {isVariant ? label : CLASS_WORD[gpuClass]}
          </code>
        </div>
        <Ring done={done} total={total} share={share} />
      </div>
      {infeasible(config) === '' ? (
        <Numbers config={config} headline={headline} scale={scale} isRunOver={isRunOver} />
      ) : (
        <div className={styles.infeasible}>
          <strong>INFEASIBLE</strong>
          <p>{infeasible(config)}</p>
        </div>
      )}
      <p className={styles.foot}>{foot}</p>
      {refining !== '' && (
        <p className={`${styles.foot} ${styles.refining}`} title={config.refinement?.sentence} data-refined={config.isRefined}>
          {refining}
        </p>
      )}
    </li>
  )
})

interface NumbersProps {
  readonly config: Config
  readonly headline: Metric
  readonly scale: Ms
  readonly isRunOver: boolean
}

function Numbers({ config, headline, scale, isRunOver }: NumbersProps) {
  return (
    <>
      <Big config={config} headline={headline} scale={scale} isRunOver={isRunOver} />
      <dl className={styles.rest}>
        {METRICS.filter((metric) => metric !== headline).map((metric) => (
          <Small key={metric} config={config} metric={metric} isRunOver={isRunOver} />
        ))}
      </dl>
    </>
  )
}

function Big({ config, headline: metric, scale, isRunOver }: NumbersProps) {
  const estimate = metricOf(config, metric)
  const unit = timeUnit(estimate ? [estimate.value] : [])
  return (
    <div className={styles.big}>
      <span className={styles.metric}>{NAMES[metric]}</span>
      {estimate ? (
        <span className={styles.line}>
          <span className={styles.number}>{time(estimate.value, unit)}</span> {unit}
          <span className={styles.range}>
            <span className="visually-hidden">, between </span>
            {range(estimate.p10, estimate.p90, unit)}
          </span>
        </span>
      ) : (
        <span className={styles.line}>
          <Nothing config={config} metric={metric} isRunOver={isRunOver} className={styles.number} />
        </span>
      )}
      {estimate && <Band estimate={estimate} scale={scale} color={classOf(config.spec.gpu)} />}
    </div>
  )
}

function Small({ config, metric, isRunOver }: { readonly config: Config; readonly metric: Metric; readonly isRunOver: boolean }) {
  const estimate = metricOf(config, metric)
  const unit = timeUnit(estimate ? [estimate.value] : [])
  return (
    <div className={styles.row}>
      <dt>{NAMES[metric]}</dt>
      <dd>
        {estimate ? (
          <>
            {time(estimate.value, unit)} {unit}
            <span className={styles.range}>{range(estimate.p10, estimate.p90, unit)}</span>
          </>
        ) : (
          <Nothing config={config} metric={metric} isRunOver={isRunOver} />
        )}
      </dd>
    </div>
  )
}

/** Absent is drawn as absent, with its reason; what is on its way as on its way. Neither is ever zero. */
function Nothing({
  config,
  metric,
  isRunOver,
  className,
}: {
  readonly config: Config
  readonly metric: Metric
  readonly isRunOver: boolean
  readonly className?: string | undefined
}) {
  const reason = reasonFor(config, metric, isRunOver)
  const isPending = config.request === null && !isRunOver
  return (
    <span className={`${className ?? ''} ${isPending ? styles.pending : styles.none}`} title={reason}>
      –<span className="visually-hidden"> ({reason})</span>
    </span>
  )
}

/** How much of the trace's time is simulated. */
function Ring({ done, total, share }: { readonly done: number; readonly total: number; readonly share: number }) {
  return (
    <svg
      className={styles.ring}
      viewBox="0 0 36 36"
      width="36"
      height="36"
      role="progressbar"
      aria-label="Tasks simulated"
      aria-valuemin={0}
      aria-valuemax={Math.max(1, total)}
      aria-valuenow={done}
    >
      <circle cx="18" cy="18" r="15" className={styles.track} />
      <circle
        cx="18"
        cy="18"
        r="15"
        pathLength="100"
        className={styles.arc}
        style={{ strokeDashoffset: 100 - share * 100 }}
      />
      <text x="18" y="18" className={styles.share} aria-hidden="true">
        {total > 0 ? Math.floor(share * 100) : '–'}
      </text>
    </svg>
  )
}

function refiningOf(run: Run, config: Config): string {
  const { refinement } = config
  if (run.refineWith === '' || refinement === null) return run.refineWith === '' || isOver(run) ? '' : `then refined with ${run.refineWith}`
  const of = counted(refinement.chosen.size, 'kernel')
  if (refinement.chosen.size === 0) return `no kernel for ${run.refineWith}`
  const failed = refinement.failedCount > 0 ? `, ${refinement.failedCount} failed` : ''
  if (config.isRefined) return `${run.refineWith}: ${refinement.takenCount} of ${of} refined${failed}`
  return `${run.refineWith}: ${refinement.done.size} of ${of} done${failed}`
}

function footOf(run: Run, config: Config, done: number, total: number, etaS: number | undefined): string {
  const failed = config.failedCount > 0 ? `, ${config.failedCount} failed` : ''
  const tasks = `${done} of ${counted(total, 'task')}${failed}`
  switch (run.status) {
    case 'unknown':
      return 'not asked for yet'
    case 'running':
      if (total === 0) return 'waiting for the trace'
      if (run.trace.status === 'importing' && done >= total) return `${tasks}, the trace is still coming`
      return done === 0 ? `${tasks}, queued` : done < total ? `${tasks}${etaS === undefined ? '' : `, about ${timeWithUnit(ms(etaS * 1000))} left`}` : config.request === null ? `${tasks}, composing` : tasks
    case 'completed':
    case 'completed_with_failures':
    case 'failed':
    case 'cancelled':
      return tasks
    default:
      return unreachable(run.status)
  }
}
