import { padding, range, time, type TimeUnit } from '../lib/format'
import type { Estimate, Ms } from '../lib/units'
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
}

/** A number never travels alone: the value, its interval in words, and both on the column's shared scale. */
export function Interval({ estimate, unit, scale, color }: Props) {
  const text = time(estimate.value, unit)
  return (
    <span className={styles.interval}>
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
      <Band estimate={estimate} scale={scale} color={color} />
    </span>
  )
}

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
    <svg className={styles.band} aria-hidden="true" width="100%" height="6" color={`var(--${color})`}>
      <title>{isWide ? 'wide interval: p90 is more than twice p10' : 'p10 to p90'}</title>
      <line x1="0" x2="100%" y1="3" y2="3" className={styles.axis} />
      <rect
        x={`${at(estimate.p10)}%`}
        width={`${Math.max(0.5, at(estimate.p90) - at(estimate.p10))}%`}
        y="0"
        height="6"
        rx="1"
        fill="currentColor"
        opacity="0.45"
      />
      <rect x={`${at(estimate.value)}%`} width="2" y="0" height="6" className={styles.tick} />
    </svg>
  )
}
