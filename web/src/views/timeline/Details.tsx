import type { AreaOn, LaunchSaid, OnConfig } from '../../canvas/protocol'
import { boundShown, familyShown } from '../../lib/families'
import { count, counted, digits, MISSING, percent, time, timeUnit, timeWithUnit, type TimeUnit } from '../../lib/format'
import { ms, ratio, type Ms } from '../../lib/units'
import styles from './Details.module.css'

const msOf = (nanoseconds: number): Ms => ms(nanoseconds / 1e6)

const STATES: Readonly<Record<OnConfig['state'], string>> = { known: '', pending: 'pending', failed: 'failed', measured: 'measured' }

/** One launch, on every GPU. */
export function LaunchDetails({ launch }: { readonly launch: LaunchSaid }) {
  const unit = timeUnit(launch.on.flatMap(({ duration }) => (duration === null ? [] : [msOf(duration)])))
  const chosen = launch.on.find(({ letter }) => letter === launch.letter)
  return (
    <div className={styles.details}>
      <p className={styles.kernel} style={{ borderLeftColor: `var(--${familyShown(launch.family).token})` }}>
        <code>{launch.name}</code>
      </p>
      <dl className={styles.facts}>
        <dt>Family</dt>
        <dd>{familyShown(launch.family).word}</dd>
        {launch.op !== '' && (
          <>
            <dt>Op</dt>
            <dd>
              <code>{launch.op}</code>
            </dd>
          </>
        )}
        <dt>Step</dt>
        <dd>{launch.step}</dd>
        <dt>Launch</dt>
        <dd>
          {count(launch.seq)}, stream {launch.stream}
          {launch.rank > 0 ? `, rank ${launch.rank}` : ''}
        </dd>
        <dt>Task</dt>
        <dd>
          <code>{launch.taskId.slice(0, 16)}</code>
        </dd>
      </dl>
      <table className={styles.table}>
        <caption className="visually-hidden">This launch on every GPU</caption>
        <thead>
          <tr>
            <th scope="col">GPU</th>
            <th scope="col">{unit}</th>
            <th scope="col">p10–p90</th>
            <th scope="col">ratio</th>
            <th scope="col">bound</th>
          </tr>
        </thead>
        <tbody>
          {launch.on.map((one) => (
            <tr key={one.letter} aria-current={one.letter === launch.letter || undefined}>
              <th scope="row" title={one.name}>
                {one.letter}
              </th>
              <td>{one.duration === null ? STATES[one.state] || MISSING : time(msOf(one.duration), unit)}</td>
              <td className={styles.quiet}>{rangeOf(one, unit)}</td>
              <td>{one.ratio === null ? '' : `${digits(one.ratio)}×`}</td>
              <td className={styles.quiet}>{one.bound === '' ? '' : boundShown(one.bound).word}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {chosen !== undefined && chosen.state !== 'measured' && (
        <dl className={styles.facts}>
          <dt>Forward</dt>
          <dd>{chosen.forward === null ? MISSING : timeWithUnit(msOf(chosen.forward))}</dd>
          <dt>Roofline</dt>
          <dd>{chosen.roofline === null ? MISSING : timeWithUnit(msOf(chosen.roofline))}</dd>
          <dt>Correction</dt>
          <dd>{chosen.correction === null ? MISSING : `× ${digits(chosen.correction)}`}</dd>
          {chosen.reason !== '' && (
            <>
              <dt>Reason</dt>
              <dd>{chosen.reason}</dd>
            </>
          )}
        </dl>
      )}
    </div>
  )
}

const rangeOf = ({ p10, p90 }: OnConfig, unit: TimeUnit): string =>
  p10 === null || p90 === null ? '' : `${time(msOf(p10), unit)}–${time(msOf(p90), unit)}`

/** A launch in a sentence, for who hears it. */
export function sentenceOf(launch: LaunchSaid): string {
  const on = launch.on.find(({ letter }) => letter === launch.letter)
  const how = on?.duration == null ? 'without a result' : timeWithUnit(msOf(on.duration))
  return `${familyShown(launch.family).word}, ${launch.step}, launch ${count(launch.seq)} on ${launch.letter}, ${how}`
}

/** What starts in a stretch of time, on every GPU side by side. */
export function AreaDetails({ area }: { readonly area: { readonly t0: number; readonly t1: number; readonly on: readonly AreaOn[] } }) {
  const shown = area.on.filter(({ count: launches, pendingCount }) => launches + pendingCount > 0)
  const unit = timeUnit(shown.map(({ busy }) => msOf(busy)))
  const small = timeUnit(shown.map(({ mean }) => msOf(mean)))
  const rows: readonly (readonly [string, (one: AreaOn) => string])[] = [
    ['launches', (one) => count(one.count)],
    [`busy, ${unit}`, (one) => time(msOf(one.busy), unit)],
    [`gaps, ${unit}`, (one) => time(msOf(one.gaps), unit)],
    [`min, ${small}`, (one) => time(msOf(one.min), small)],
    [`mean, ${small}`, (one) => time(msOf(one.mean), small)],
    [`p99, ${small}`, (one) => time(msOf(one.p99), small)],
    [`max, ${small}`, (one) => time(msOf(one.max), small)],
    ['ratio', (one) => (one.ratio === null ? '' : `${digits(one.ratio)}×`)],
  ]
  const pending = shown.reduce((sum, { pendingCount }) => sum + pendingCount, 0)
  return (
    <div className={styles.details}>
      <p>
        {timeWithUnit(msOf(area.t1 - area.t0))} from {timeWithUnit(msOf(area.t0))}; launches that start in it
      </p>
      <div className={styles.wide} tabIndex={0} role="region" aria-label="Statistics of the area">
        <table className={styles.table}>
          <thead>
            <tr>
              <td />
              {shown.map(({ letter, name }) => (
                <th key={letter} scope="col" title={name}>
                  {letter}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(([name, value]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                {shown.map((one) => (
                  <td key={one.letter}>{value(one)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {pending > 0 && <p className={styles.quiet}>{counted(pending, 'launch', 'launches')} without a result are in none of these.</p>}
      {shown.map((one) => (
        <div key={one.letter} className={styles.families}>
          <span>{one.letter}</span>
          <div className={styles.bar} role="img" aria-label={`Time by family on ${one.letter}: ${familyWords(one)}`}>
            {one.families.map(({ family, busy }) => (
              <span
                key={family}
                title={`${familyShown(family).word}: ${timeWithUnit(msOf(busy))}, ${percent(ratio(one.busy > 0 ? busy / one.busy : 0))}`}
                style={{ width: `${one.busy > 0 ? (100 * busy) / one.busy : 0}%`, background: `var(--${familyShown(family).token})` }}
              />
            ))}
          </div>
        </div>
      ))}
      {shown[0] !== undefined && <p className={styles.quiet}>{familyWords(shown[0])}</p>}
    </div>
  )
}

const familyWords = (one: AreaOn): string =>
  one.families
    .slice(0, 6)
    .map(({ family, busy }) => `${familyShown(family).word} ${percent(ratio(one.busy > 0 ? busy / one.busy : 0))}`)
    .join(', ')
