import { familyShown, isFamily } from '../../lib/families'
import { digits, MISSING, time, timeUnit, type TimeUnit } from '../../lib/format'
import { ms } from '../../lib/units'
import { missing, waterfallBars, type Comparison, type WaterfallBar } from './comparison'
import styles from './Waterfall.module.css'

/** How one number becomes the other: what each family takes away or adds, to scale. */
export function Waterfall({ comparison, base, other }: { readonly comparison: Comparison; readonly base: string; readonly other: string }) {
  const bars = waterfallBars(comparison)
  if (bars.length === 0) return <p className={styles.none}>One of both has no number here, so there is no way from one to the other.</p>
  const unit = timeUnit(bars.filter(({ kind }) => kind !== 'change').map(({ to }) => ms(to / 1e6)))
  const most = Math.max(...bars.flatMap(({ from, to }) => [from, to]))
  const gap = missing(bars)
  return (
    <>
      <ol className={styles.bars} aria-label={`From ${base} to ${other}`}>
        {bars.map((bar) => (
          <Bar key={bar.label} bar={bar} most={most} unit={unit} name={bar.kind === 'start' ? base : bar.kind === 'end' ? other : nameOf(bar.label)} />
        ))}
      </ol>
      {gap !== 0 && (
        <p className={styles.none} role="alert">
          The bars miss {time(ms(gap / 1e6), unit)} {unit} of the difference.
        </p>
      )}
    </>
  )
}

/** Families in words; what is none (gaps, others) is in words already. */
const nameOf = (label: string): string => (isFamily(label) ? familyShown(label).word : label)

function Bar({ bar, most, unit, name }: { readonly bar: WaterfallBar; readonly most: number; readonly unit: TimeUnit; readonly name: string }) {
  const { from, to, kind } = bar
  const [low, high] = [Math.min(from, to), Math.max(from, to)]
  const change = to - from
  const tone = kind !== 'change' ? styles.whole : change < 0 ? styles.faster : styles.slower
  const text = kind === 'change' ? `${change < 0 ? '−' : '+'}${digits(Math.abs(Number(time(ms(Math.abs(change) / 1e6), unit).replace(/\s/g, ''))))}` : time(ms(to / 1e6), unit)
  return (
    <li className={styles.row}>
      <span className={styles.name}>{name}</span>
      <span className={styles.track}>
        <span className={`${styles.bar} ${tone}`} style={{ left: `${(100 * low) / most}%`, width: `max(2px, ${(100 * (high - low)) / most}%)` }} />
      </span>
      <span className={styles.value}>
        {most > 0 ? text : MISSING} {unit}
      </span>
    </li>
  )
}
