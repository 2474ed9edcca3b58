import { useEffect, useMemo, useRef, useState } from 'react'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { ink, onTheme, type Ink } from '../../lib/colours'
import { count, MISSING, range, timeUnit, time } from '../../lib/format'
import { classOf, isHypothetical } from '../../lib/gpus'
import type { Curves } from '../../lib/screens'
import { ms } from '../../lib/units'
import type { RunConfig } from '../../schema/events'
import { useWidth } from '../charts/useWidth'
import styles from './Curve.module.css'

interface Props {
  readonly curves: Curves
  readonly configs: readonly { readonly letter: string; readonly spec: RunConfig | null }[]
}

const HEIGHT = 360
// Its enum exists for the compiler only.
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const LOGARITHMIC = 3 as uPlot.Scale.Distr
const DASHES: readonly (readonly number[])[] = [[], [6, 3], [2, 3], [8, 3, 2, 3]]

/** Per config a line with its band. What was traced is shaded; beyond it the band widens. */
export function Curve({ curves, configs }: Props) {
  const [place, width] = useWidth<HTMLDivElement>(720)
  const host = useRef<HTMLDivElement>(null)
  const [shown, setShown] = useState<ReadonlySet<number>>(() => new Set(curves.configs.map((_, index) => index)))
  const [under, setUnder] = useState<number | null>(null)
  const inked = useInk()
  const unit = useMemo(() => timeUnit(curves.configs.flatMap(({ points }) => points.map((point) => ms(point.value_ms)))), [curves])
  useEffect(() => {
    const element = host.current
    if (element === null) return
    const plot = new uPlot(optionsOf(curves, configs, shown, width, unit, inked, setUnder), dataOf(curves), element)
    return () => plot.destroy()
  }, [curves, configs, shown, width, unit, inked])
  const at = under ?? nearest(curves)
  return (
    <div className={styles.curve}>
      <div ref={place} className={styles.place}>
        <div ref={host} className={styles.plot} role="img" aria-label={`A decode step over ${curves.axis}: the table beside it has the same numbers`} />
      </div>
      <table className={styles.table}>
        <caption className="visually-hidden">A decode step at {count(curves.x[at] ?? 0)} {curves.axis === 'context' ? 'tokens of context' : 'requests'}</caption>
        <thead>
          <tr>
            <th scope="col">GPU</th>
            <th scope="col">
              at {count(curves.x[at] ?? 0)} {curves.axis === 'context' ? 'tokens' : 'requests'}, {unit}
            </th>
          </tr>
        </thead>
        <tbody>
          {curves.configs.map((curve, index) => {
            const point = curve.points[at]
            return (
              <tr key={curve.config_id}>
                <th scope="row">
                  <label className={styles.toggle}>
                    <input
                      type="checkbox"
                      checked={shown.has(index)}
                      onChange={() => setShown((now) => new Set(now.has(index) ? [...now].filter((one) => one !== index) : [...now, index]))}
                    />
                    <Line index={index} configs={configs} />
                    <b>{configs[index]?.letter}</b> {curve.gpu}
                  </label>
                </th>
                <td>
                  {point === undefined ? (
                    MISSING
                  ) : point.infeasible !== null ? (
                    <span className={styles.infeasible}>INFEASIBLE: {point.infeasible}</span>
                  ) : (
                    <>
                      {time(ms(point.value_ms), unit)} <span>{range(ms(point.p10_ms), ms(point.p90_ms), unit)}</span>
                      {point.is_extrapolated && <span className="chip">extrapolated</span>}
                    </>
                  )}
                </td>
              </tr>
            )
          })}
        </tbody>
      </table>
      <p className={styles.words}>
        {curves.axis === 'context'
          ? `${count(curves.requests)} requests at once, as in step ${count(curves.step)}; traced: ${count(Math.round(curves.traced.low))} to ${count(Math.round(curves.traced.high))} tokens of context each.`
          : `${count(curves.context_tokens)} tokens of context each, as in step ${count(curves.step)}; traced: ${count(curves.traced.low)} to ${count(curves.traced.high)} requests at once.`}{' '}
        Bands hold in 8 of 10 cases; beyond what was traced they widen. Dashes tell GPUs of one class apart.
      </p>
    </div>
  )
}

function Line({ index, configs }: { readonly index: number; readonly configs: Props['configs'] }) {
  return (
    <svg width="24" height="8" aria-hidden="true">
      <line x1="0" x2="24" y1="4" y2="4" stroke={`var(--${tokenOf(configs[index]?.spec ?? null)})`} strokeWidth="2" strokeDasharray={dashOf(index, configs).join(' ')} />
    </svg>
  )
}

const tokenOf = (spec: RunConfig | null): string => (spec === null ? 'other' : isHypothetical(spec.label) ? 'hypothetical' : classOf(spec.gpu))

/** Several GPUs of one class share its colour and are told apart by their dashes. */
function dashOf(index: number, configs: Props['configs']): readonly number[] {
  const token = tokenOf(configs[index]?.spec ?? null)
  const before = configs.slice(0, index).filter(({ spec }) => tokenOf(spec) === token).length
  return DASHES[before % DASHES.length] ?? []
}

/** The point next to what was traced. */
function nearest(curves: Curves): number {
  const wanted = (curves.traced.low + curves.traced.high) / 2
  return curves.x.reduce((best, x, index) => (Math.abs(x - wanted) < Math.abs((curves.x[best] ?? 0) - wanted) ? index : best), 0)
}

// --- the plot ---------------------------------------------------------------------------------------------------------

/** x, then per config value, p10, p90. */
function dataOf(curves: Curves): uPlot.AlignedData {
  const series = curves.configs.flatMap(({ points }) =>
    (['value_ms', 'p10_ms', 'p90_ms'] as const).map((name) => points.map((point) => (point.infeasible === null ? point[name] : null))),
  )
  return [[...curves.x], ...series]
}

/** Canvas knows no custom properties: their values, and anew when the theme changes. */
function useInk(): Ink {
  const [shown, setShown] = useState<Ink>(ink)
  useEffect(() => onTheme(() => setShown(ink)), [])
  return shown
}

function optionsOf(
  curves: Curves,
  configs: Props['configs'],
  shown: ReadonlySet<number>,
  width: number,
  unit: ReturnType<typeof timeUnit>,
  inked: Ink,
  onCursor: (index: number | null) => void,
): uPlot.Options {
  const font = '11px "Inter Variable", system-ui, sans-serif'
  const axis = { font, stroke: inked('text3'), grid: { stroke: inked('line'), width: 1 }, ticks: { show: false } }
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [12, 24, 0, 0],
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time: false, distr: LOGARITHMIC, log: 2 }, y: { distr: LOGARITHMIC } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((tick) => count(Math.round(tick))) },
      { ...axis, size: 64, values: (_, ticks) => ticks.map((tick: number | null) => labelled(tick, unit)) },
    ],
    series: [
      {},
      ...curves.configs.flatMap((_, index): uPlot.Series[] => {
        const stroke = inked(tokenOf(configs[index]?.spec ?? null))
        const show = shown.has(index)
        return [
          { stroke, width: 2, show, dash: [...dashOf(index, configs)], points: { show: false } },
          { show, width: 0, points: { show: false } },
          { show, width: 0, points: { show: false } },
        ]
      }),
    ],
    bands: curves.configs.flatMap((_, index) =>
      shown.has(index) ? [{ series: [index * 3 + 3, index * 3 + 2] as [number, number], fill: faded(inked(tokenOf(configs[index]?.spec ?? null))) }] : [],
    ),
    hooks: {
      drawClear: [(plot) => shadeTraced(plot, curves, inked)],
      draw: [(plot) => letterEnds(plot, curves, configs, shown, inked)],
      setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)],
    },
  }
}

const labelled = (tick: number | null, unit: ReturnType<typeof timeUnit>): string => (tick === null ? '' : `${time(ms(tick), unit)} ${unit}`)

const faded = (color: string): string => color.replace('rgb(', 'rgba(').replace(')', ', 0.14)')

function shadeTraced(plot: uPlot, curves: Curves, inked: Ink): void {
  const { ctx, bbox } = plot
  const left = plot.valToPos(curves.traced.low, 'x', true)
  const right = plot.valToPos(curves.traced.high, 'x', true)
  ctx.save()
  ctx.fillStyle = faded(inked('accent'))
  ctx.fillRect(left - 2, bbox.top, Math.max(4, right - left + 4), bbox.height)
  ctx.fillStyle = inked('text2')
  ctx.font = `${11 * devicePixelRatio}px "Inter Variable", system-ui, sans-serif`
  ctx.fillText('traced', right + 6, bbox.top + 12 * devicePixelRatio)
  ctx.restore()
}

/** Each line says whose it is where it ends. */
function letterEnds(plot: uPlot, curves: Curves, configs: Props['configs'], shown: ReadonlySet<number>, inked: Ink): void {
  const { ctx, bbox } = plot
  ctx.save()
  ctx.font = `600 ${11 * devicePixelRatio}px "Inter Variable", system-ui, sans-serif`
  ctx.textBaseline = 'middle'
  let above = -Infinity
  const ends = curves.configs
    .flatMap(({ points }, index) => {
      const last = points.findLastIndex(({ infeasible }) => infeasible === null)
      const point = points[last]
      if (point === undefined || !shown.has(index)) return []
      return [{ index, x: plot.valToPos(curves.x[last] ?? 1, 'x', true), y: plot.valToPos(point.value_ms, 'y', true) }]
    })
    .sort((a, b) => a.y - b.y)
  for (const { index, x, y } of ends) {
    const at = Math.max(y, above + 12 * devicePixelRatio)
    above = at
    ctx.fillStyle = inked(tokenOf(configs[index]?.spec ?? null))
    ctx.fillText(configs[index]?.letter ?? '', Math.min(x + 5 * devicePixelRatio, bbox.left + bbox.width + 5 * devicePixelRatio), at)
  }
  ctx.restore()
}
