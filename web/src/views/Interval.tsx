import type { Ink } from '../lib/colours'
import { padding, range, time, type TimeUnit } from '../lib/format'
import type { Estimate, Ms } from '../lib/units'
import type { Box } from './charts/sparkline'
import styles from './Interval.module.css'

/** The scale that a column's intervals share, from 0 to the largest bound. */
export function scaleOf(estimates: readonly (Estimate | null)[]): Ms {
  return Math.max(0, ...estimates.map((one) => one?.p90 ?? 0)) as Ms
}

interface Props {
  readonly estimate: Estimate
  readonly unit: TimeUnit
  readonly scale: Ms
  /** A colour token of the config's class. */
  readonly color: string
  /** Somebody else draws the band: a table's canvas (`paintBand`). */
  readonly isBandless?: boolean
}

/** A number never travels alone: the value, its interval in words, and both on the column's shared scale. */
export function Interval({ estimate, unit, scale, color, isBandless }: Props) {
  const text = time(estimate.value, unit)
  return (
    <span className={`${styles.interval} ${isBandless === true ? styles.bandless : ''}`}>
      <span className={styles.value}>
        {text}
        <span className={styles.pad} aria-hidden="true">
          {padding(text)}
        </span>
      </span>
      <span className={styles.range} aria-hidden="true">
        {range(estimate.p10, estimate.p90, unit)}
      </span>
      <span className="visually-hidden">
        {unit}, between {time(estimate.p10, unit)} and {time(estimate.p90, unit)} in 8 of 10 cases
      </span>
      {isBandless === true ? null : <Band estimate={estimate} scale={scale} color={color} />}
    </span>
  )
}

/** The band at the bottom of a table's cell, as `Band` draws it. */
export function paintBand(
  context: CanvasRenderingContext2D,
  { estimate, scale, color }: { readonly estimate: Estimate; readonly scale: Ms; readonly color: string },
  box: Box,
  inked: Ink,
): void {
  const top = box.y + box.height - BAND_PX - 1
  const at = (value: Ms) => box.x + (scale > 0 ? (value / scale) * box.width : 0)
  context.fillStyle = inked('line')
  context.fillRect(box.x, top + BAND_PX / 2 - 0.5, box.width, 1)
  context.globalAlpha = BAND_OPACITY
  context.fillStyle = inked(color)
  context.fillRect(at(estimate.p10), top, Math.max(0.005 * box.width, at(estimate.p90) - at(estimate.p10)), BAND_PX)
  context.globalAlpha = 1
  context.fillStyle = inked('text1')
  context.fillRect(at(estimate.value), top, 2, BAND_PX)
}

const BAND_PX = 6
const BAND_OPACITY = 0.45

export function Band({
  estimate,
  scale,
  color,
}: {
  readonly estimate: Estimate
  readonly scale: Ms
  readonly color: string
}) {
  const isWide = estimate.p90 > 2 * estimate.p10
  const at = (value: Ms) => (scale > 0 ? (value / scale) * 100 : 0)
  return (
    <svg className={styles.band} aria-hidden="true" width="100%" height={BAND_PX} color={`var(--${color})`}>
      <title>{isWide ? 'wide interval: p90 is more than twice p10' : 'p10 to p90'}</title>
      <line x1="0" x2="100%" y1="3" y2="3" className={styles.axis} />
      <rect
        x={`${at(estimate.p10)}%`}
        width={`${Math.max(0.5, at(estimate.p90) - at(estimate.p10))}%`}
        y="0"
        height={BAND_PX}
        rx="1"
        fill="currentColor"
        opacity={BAND_OPACITY}
      />
      <rect x={`${at(estimate.value)}%`} width="2" y="0" height={BAND_PX} className={styles.tick} />
    </svg>
  )
}
