import type { FromTimeline, ToTimeline } from '../../canvas/protocol'
import { digits, timeWithUnit } from '../../lib/format'
import { ms } from '../../lib/units'
import styles from './Transport.module.css'

interface Props {
  readonly clock: Extract<FromTimeline, { readonly op: 'clock' }> | null
  readonly status: Extract<FromTimeline, { readonly op: 'status' }> | null
  readonly isLooping: boolean
  readonly send: (said: ToTimeline) => void
}

/** The simulated clock: where the playhead is, and what each GPU runs there. */
export function Transport({ clock, status, isLooping, send }: Props) {
  const command = (name: Extract<ToTimeline, { readonly op: 'command' }>['command']) => send({ op: 'command', command: name })
  const speed = clock?.speed ?? 0.001
  return (
    <div className={styles.bar} role="group" aria-label="Simulated time">
      <span className={styles.name}>Simulated</span>
      <button type="button" className="button quiet" aria-label={clock?.isPlaying ? 'Pause simulated time' : 'Play simulated time'} onClick={() => command('play')}>
        {clock?.isPlaying ? '❚❚' : '▶'}
      </button>
      <button type="button" className="button quiet" aria-label="Slower" onClick={() => command('slower')}>
        −
      </button>
      <span className={styles.speed} title="Simulated time per second of yours">
        {timeWithUnit(ms(speed * 1000))}/s
      </span>
      <button type="button" className="button quiet" aria-label="Faster" onClick={() => command('faster')}>
        +
      </button>
      <button type="button" className="button quiet" aria-pressed={isLooping} onClick={() => command('loop')}>
        Loop
      </button>
      {status?.isComplete === false && (
        <button type="button" className="button quiet" aria-pressed={status.isFollowing} onClick={() => command('follow')}>
          Follow
        </button>
      )}
      <span className={styles.time}>
        {clock?.time == null ? 'click the ruler to set the playhead' : timeWithUnit(ms(clock.time / 1e6))}
        {clock?.time != null && status !== null && <span className={styles.share}> {digits((100 * clock.time) / status.end)} %</span>}
      </span>
      <ul className={styles.running} aria-label="Running at the playhead">
        {clock?.running.map(({ letter, name, step }) => (
          <li key={letter} title={`${name || 'nothing'}, ${step}`}>
            <b>{letter}</b>
            <span>{name || '–'}</span>
          </li>
        ))}
      </ul>
    </div>
  )
}
