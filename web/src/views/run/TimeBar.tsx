import { useEffect, useRef, useState } from 'react'
import { clock, count } from '../../lib/format'
import { position, type Position } from '../../lib/units'
import type { Link } from '../../store/feed'
import type { Recording } from '../../store/recording'
import styles from './TimeBar.module.css'

const SPEEDS = [0.1, 1, 10, 100] as const
/** Stretches in which nothing was said are passed over. */
const IDLE_MS = 500
const BINS = 160

interface Props {
  readonly recording: Recording
  readonly recordCount: number
  readonly at: Position
  readonly isReplay: boolean
  readonly link: Link
  readonly known: string
  readonly onSeek: (at: Position | null) => void
}

/** The log as a track: what was known when. Its end is now. */
export function TimeBar({ recording, recordCount, at, isReplay, link, known, onSeek }: Props) {
  const [speed, setSpeed] = useState<number>(1)
  const [isPlaying, setIsPlaying] = useState(false)
  const seek = (to: number) => onSeek(to >= recordCount ? null : position(Math.max(0, to)))
  useReplay(isPlaying, speed, recording, at, recordCount, (to) => {
    if (to >= recordCount) setIsPlaying(false)
    seek(to)
  })
  const time = recording.timeAt(at)
  const words = `record ${count(at)} of ${count(recordCount)}${time === null ? '' : `, ${clock(time)}`}, ${known}`
  return (
    <div className={`${styles.bar} ${isReplay ? styles.replay : ''}`} role="group" aria-label="Replay of the log">
      <button
        type="button"
        className={`button quiet ${styles.play}`}
        disabled={recordCount === 0}
        aria-label={isPlaying ? 'Pause' : 'Play'}
        onClick={() => {
          if (!isPlaying && !isReplay) onSeek(position(0)) // from the end there is only the beginning to play
          setIsPlaying(!isPlaying)
        }}
      >
        {isPlaying ? '❚❚' : '▶'}
      </button>
      <label className="visually-hidden" htmlFor="speed">
        Speed of the replay
      </label>
      <select id="speed" className={`field ${styles.speed}`} value={speed} onChange={(event) => setSpeed(Number(event.target.value))}>
        {SPEEDS.map((one) => (
          <option key={one} value={one}>
            {one}×
          </option>
        ))}
      </select>
      <div className={styles.track}>
        <Density recording={recording} recordCount={recordCount} />
        <input
          type="range"
          aria-label="Position in the log"
          aria-valuetext={words}
          min={0}
          max={Math.max(1, recordCount)}
          value={at}
          disabled={recordCount === 0}
          onChange={(event) => {
            setIsPlaying(false)
            seek(Number(event.target.value))
          }}
        />
      </div>
      <span className={styles.words} data-testid="moment">
        {words}
      </span>
      <button
        type="button"
        className={`button ${styles.live}`}
        disabled={!isReplay}
        onClick={() => {
          setIsPlaying(false)
          onSeek(null)
        }}
      >
        {link === 'complete' ? 'End' : 'Live'}
      </button>
    </div>
  )
}

/** Moves through the log at a multiple of the speed at which it was written. */
function useReplay(
  isPlaying: boolean,
  speed: number,
  recording: Recording,
  at: Position,
  recordCount: number,
  onMove: (to: number) => void,
): void {
  const latest = useRef({ at, onMove, recordCount })
  useEffect(() => {
    latest.current = { at, onMove, recordCount }
  })
  useEffect(() => {
    if (!isPlaying) return undefined
    let frame = 0
    let before = performance.now()
    let leftMs = 0
    const step = (now: number) => {
      leftMs += (now - before) * speed
      before = now
      const { at: from, onMove: move, recordCount: end } = latest.current
      let index = recording.countBefore(from)
      let to: number = from
      for (;;) {
        const next = recording.records[index]
        if (next === undefined) {
          to = end
          break
        }
        const gapMs = Math.min(next.at - (recording.timeAt(to) ?? next.at), IDLE_MS)
        if (gapMs > leftMs) break
        leftMs -= Math.max(0, gapMs)
        to = next.position + 1
        index += 1
      }
      if (to !== from) move(to)
      if (to < end) frame = requestAnimationFrame(step)
    }
    frame = requestAnimationFrame(step)
    return () => cancelAnimationFrame(frame)
  }, [isPlaying, speed, recording])
}

/** Where in the log results came: the taller, the more records a place holds that this page shows. */
function Density({ recording, recordCount }: { readonly recording: Recording; readonly recordCount: number }) {
  if (recordCount === 0) return null
  const bins = new Array<number>(BINS).fill(0)
  for (const record of recording.records) {
    const bin = Math.min(BINS - 1, Math.floor((record.position / recordCount) * BINS))
    bins[bin] = (bins[bin] ?? 0) + (record.type === 'KernelTaskTraced' ? 0.2 : 1)
  }
  const most = Math.max(...bins)
  const bars = bins.map((value, bin) => `M${bin + 0.5} 16v${-(value > 0 ? 2 + (14 * value) / most : 0)}`).join('')
  return (
    <svg className={styles.density} viewBox={`0 0 ${BINS} 16`} preserveAspectRatio="none" aria-hidden="true">
      <path d={bars} stroke="currentColor" strokeWidth="0.7" />
    </svg>
  )
}
