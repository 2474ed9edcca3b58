import { memo, useMemo, useState } from 'react'
import { MISSING, percent, signedPercent, timeUnit, type TimeUnit } from '../../lib/format'
import { classOf, isHypothetical, letter, shortName } from '../../lib/gpus'
import { assumptionSentence, DEFINITION } from '../../lib/words'
import { infeasible, isOver, isPredicted, METRICS, metricOf, reasonFor, requestedConfigs, type Config, type Metric, type Run } from '../../store/run'
import type { Ms } from '../../lib/units'
import { Interval, scaleOf } from '../Interval'
import styles from './Results.module.css'

const HEADS: Readonly<Record<Metric, string>> = {
  kernel: 'Kernel time',
  prefill: 'Prefill step',
  decode: 'Decode step',
  ttft: 'TTFT',
  tpot: 'TPOT',
}

interface Sort {
  readonly by: Metric | 'gpu'
  readonly isDescending: boolean
}

/** All numbers side by side, one unit and one scale per column. */
export function Results({ run }: { readonly run: Run }) {
  const [sort, setSort] = useState<Sort>({ by: 'gpu', isDescending: false })
  const configs = requestedConfigs(run).map((config, index) => ({ config, index }))
  const columns = METRICS.map((metric) => {
    const estimates = configs.map(({ config }) => metricOf(config, metric))
    const unit = timeUnit(estimates.flatMap((one) => (one ? [one.value] : [])))
    return { metric, estimates, unit, scale: scaleOf(estimates) }
  })
  const sorted = [...configs].sort((a, b) => {
    const direction = sort.isDescending ? -1 : 1
    const column = columns.find(({ metric }) => metric === sort.by)
    if (column === undefined) return (a.index - b.index) * direction
    // What has no number stands last, whichever way.
    const [left, right] = [column.estimates[a.index]?.value, column.estimates[b.index]?.value]
    if (left === undefined || right === undefined) return Number(left === undefined) - Number(right === undefined)
    return (left - right) * direction
  })
  // A row is rendered again where its config or its column's scale changed, and not because the run went on.
  const scales = columns.map(({ metric, unit, scale }) => `${metric} ${unit} ${scale}`).join()
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const shared = useMemo(() => columns.map(({ metric, unit, scale }): Shared => ({ metric, unit, scale })), [scales])
  const press = (by: Sort['by']) => setSort((now) => ({ by, isDescending: now.by === by && !now.isDescending }))
  return (
    <section className="panel" aria-labelledby="results">
      <h2 id="results" className={styles.title}>
        Results
      </h2>
      <div className={styles.scroll} role="region" aria-label="Table of results" tabIndex={0}>
        <table className={styles.table} data-testid="results">
          <thead>
            <tr>
              <SortHead name="GPU" by="gpu" sort={sort} onPress={press} />
              {columns.map(({ metric, unit }) => (
                <SortHead key={metric} name={HEADS[metric]} unit={unit} by={metric} sort={sort} onPress={press} />
              ))}
              <th scope="col" className={styles.number}>
                Error where measured
              </th>
              <th scope="col" className={styles.number}>
                Coverage
              </th>
            </tr>
          </thead>
          <tbody>
            {sorted.map(({ config, index }) => (
              <ConfigRow key={config.spec.config_id} config={config} name={letter(index)} columns={shared} isRunOver={isOver(run)} />
            ))}
          </tbody>
        </table>
      </div>
      <Footnotes run={run} />
    </section>
  )
}

interface Shared {
  readonly metric: Metric
  readonly unit: TimeUnit
  readonly scale: Ms
}

interface RowProps {
  readonly config: Config
  readonly name: string
  readonly columns: readonly Shared[]
  readonly isRunOver: boolean
}

const ConfigRow = memo(function ConfigRow({ config, name, columns, isRunOver }: RowProps) {
  return (
    <tr>
      <th scope="row" className={styles.gpu}>
        <span className={styles.letter}>{name}</span>
        {shortName(config.spec.gpu)}
        {isHypothetical(config.spec.label) && <code className={styles.label}>* {config.spec.label}</code>}
      </th>
      {infeasible(config) !== '' ? (
        <td colSpan={METRICS.length} className={styles.infeasible}>
          <strong>INFEASIBLE</strong> {infeasible(config)}
        </td>
      ) : (
        columns.map(({ metric, unit, scale }) => {
          const estimate = metricOf(config, metric)
          return (
            <td key={metric} className={styles.number}>
              {estimate ? <Interval estimate={estimate} unit={unit} scale={scale} color={classOf(config.spec.gpu)} /> : <None reason={reasonFor(config, metric, isRunOver)} />}
            </td>
          )
        })
      )}
      <td className={styles.number}>{errorOf(config)}</td>
      <td className={styles.number}>{config.accuracy && infeasible(config) === '' ? percent(config.accuracy.coverage) : MISSING}</td>
    </tr>
  )
}, isSameRow)

/** Results without an answer yet change nothing in a row, and come by the dozen. */
function isSameRow(before: RowProps, after: RowProps): boolean {
  const [a, b] = [before.config, after.config]
  const isSaid = a.predicted === b.predicted && a.steps === b.steps && a.request === b.request && a.accuracy === b.accuracy
  return isSaid && (a === b || a.predicted === null) && before.name === after.name && before.columns === after.columns && before.isRunOver === after.isRunOver
}

function None({ reason }: { readonly reason: string }) {
  return (
    <span className={styles.none} title={reason}>
      {MISSING}
      <span className="visually-hidden"> ({reason})</span>
    </span>
  )
}

function SortHead({
  name,
  unit,
  by,
  sort,
  onPress,
}: {
  readonly name: string
  readonly unit?: string
  readonly by: Sort['by']
  readonly sort: Sort
  readonly onPress: (by: Sort['by']) => void
}) {
  const isSorted = sort.by === by
  return (
    <th
      scope="col"
      className={by === 'gpu' ? '' : styles.number}
      aria-sort={isSorted ? (sort.isDescending ? 'descending' : 'ascending') : 'none'}
    >
      <button type="button" className={styles.sort} onClick={() => onPress(by)}>
        {name}
        {unit && <span className={styles.unit}>, {unit}</span>}
        <span aria-hidden="true" className={styles.arrow}>
          {isSorted ? (sort.isDescending ? '↓' : '↑') : ''}
        </span>
      </button>
    </th>
  )
}

function errorOf(config: Config) {
  const { accuracy } = config
  if (accuracy?.weighted == null || accuracy.total === null || accuracy.mean === null) {
    const reason = accuracy === null ? 'not predicted yet' : accuracy.reason || 'nothing was measured on this GPU'
    return <None reason={reason} />
  }
  return (
    <span title="forward prediction against measured time: mean, time-weighted, and of the sum">
      mean {percent(accuracy.mean)} · weighted {percent(accuracy.weighted)} · total {signedPercent(accuracy.total)} · n ={' '}
      {accuracy.kernelCount}
    </span>
  )
}

/** The definition is always there; assumptions and reasons once each, however many configs share them. */
function Footnotes({ run }: { readonly run: Run }) {
  const configs = requestedConfigs(run)
  const assumptions = [...new Set(configs.flatMap((config) => config.assumptions))].sort()
  const ttft = configs.find((config) => config.request?.ttft)?.request
  const source = run.configs.find((config) => !config.spec.is_requested)
  const reasons = [
    ...new Set(
      configs.filter((config) => isPredicted(config) && infeasible(config) === '').flatMap((config) => [
        named('No TTFT', config.request?.ttftReason),
        named('No TPOT', config.request?.tpotReason),
        named('No error', config.accuracy?.reason),
      ]),
    ),
  ].filter((reason) => reason !== '')
  return (
    <div className={styles.notes}>
      <p>{DEFINITION}</p>
      {ttft?.promptTokens != null && (
        <p>
          TTFT is that of request {ttft.request}, which has the most prompt tokens ({ttft.promptTokens}).
        </p>
      )}
      {source?.accuracy?.weighted != null && (
        <p>
          On {source.spec.label}, where it was measured: {errorOf(source)}
        </p>
      )}
      {assumptions.length > 0 && (
        <>
          <h3>Assumptions</h3>
          <ul>
            {assumptions.map((name) => (
              <li key={name}>
                {assumptionSentence(name)} <code>{name}</code>
              </li>
            ))}
          </ul>
        </>
      )}
      {reasons.map((reason) => (
        <p key={reason}>{reason}</p>
      ))}
    </div>
  )
}

const named = (what: string, reason: string | undefined) => (reason ? `${what}: ${reason}.` : '')
