import { useQuery } from '@tanstack/react-query'
import { count, counted, timeWithUnit } from '../../lib/format'
import { screens, type Histogram } from '../../lib/screens'
import { ms } from '../../lib/units'
import styles from './LaunchHistogram.module.css'

interface Props {
  readonly traceId: string
  readonly taskId: string
  /** The forward prediction on the GPU that was measured, ns; NaN: none. */
  readonly forward: number
}

const [WIDTH, HEIGHT] = [312, 72]
/** All launches within half a per cent of each other are one bar, and still one that is seen. */
const BAR_PX_MIN = 3
const said = (time: number) => timeWithUnit(ms(time / 1e6))

/** How long the launches of one kernel took where they were recorded, and where the forward prediction stands among them. */
export function LaunchHistogram({ traceId, taskId, forward }: Props) {
  const found = useQuery({ queryKey: ['histogram', traceId, taskId], queryFn: () => screens.histogram(traceId, taskId), staleTime: 30_000 })
  if (found.data === undefined) return <div className={styles.place} aria-busy={found.isPending}>{found.error?.message}</div>
  const { bins, measured_count: measured, median_ns: median } = found.data
  if (bins.length === 0 || median === null) {
    return <p className={styles.none}>No launch of it was measured: on every GPU all of its launches take the one simulated time.</p>
  }
  return (
    <figure className={styles.place}>
      <Bars bins={bins} median={median} forward={forward} />
      <figcaption>
        {counted(measured, 'measured launch', 'measured launches')}, median {said(median)}
        {!Number.isNaN(forward) && <span className={styles.forward}>forward prediction {said(forward)}</span>}
      </figcaption>
    </figure>
  )
}

function Bars({ bins, median, forward }: { readonly bins: Histogram['bins']; readonly median: number; readonly forward: number }) {
  const most = Math.max(...bins.map((bin) => bin.count))
  const first = bins[0]?.low_ns ?? 1
  const last = bins.at(-1)?.high_ns ?? 1
  // The prediction is in the picture even where no launch came near it.
  const [low, high] = Number.isNaN(forward) ? [first, last] : [Math.min(first, forward / 1.02), Math.max(last, forward * 1.02)]
  const at = (time: number) => (Math.log(Math.max(time, 1) / low) / Math.log(high / low)) * WIDTH
  return (
    <svg
      viewBox={`0 0 ${WIDTH} ${HEIGHT + 14}`}
      width="100%"
      role="img"
      aria-label={`Measured launches from ${said(first)} to ${said(last)}, most often ${said(bins.find((bin) => bin.count === most)?.low_ns ?? first)}`}
    >
      {bins.map((bin) => {
        // One launch among a million is still seen.
        const tall = bin.count > 0 ? Math.max(2, (bin.count / most) * HEIGHT) : 0
        return (
          <rect key={bin.low_ns} x={at(bin.low_ns)} width={Math.max(BAR_PX_MIN, at(bin.high_ns) - at(bin.low_ns) - 0.5)} y={HEIGHT - tall} height={tall} className={styles.bar}>
            <title>{`${said(bin.low_ns)} to ${said(bin.high_ns)}: ${count(bin.count)}`}</title>
          </rect>
        )
      })}
      <line x1={at(median)} x2={at(median)} y1="0" y2={HEIGHT} className={styles.median} />
      {!Number.isNaN(forward) && <line x1={at(forward)} x2={at(forward)} y1="0" y2={HEIGHT} className={styles.mark} />}
      <line x1="0" x2={WIDTH} y1={HEIGHT} y2={HEIGHT} className={styles.axis} />
      <text x="0" y={HEIGHT + 12} className={styles.tick}>
        {said(low)}
      </text>
      <text x={WIDTH} y={HEIGHT + 12} textAnchor="end" className={styles.tick}>
        {said(high)}
      </text>
    </svg>
  )
}
