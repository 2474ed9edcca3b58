import { useQuery } from '@tanstack/react-query'
import { memo, useEffect, useRef, useState, type ReactNode } from 'react'
import { api } from '../../lib/api'
import { clock, count } from '../../lib/format'
import { position, type Position } from '../../lib/units'
import type { Link } from '../../store/feed'
import type { Recording } from '../../store/recording'
import styles from './TimeBar.module.css'

const SPEEDS = [0.1, 1, 10, 100] as const
/** Stretches in which nothing was said are passed over. */
const IDLE_MS = 500
const BINS = 160
/** Who rests here for so long has arrived. */
const RESTED_MS = 400
/** Longer silences are marked where they were folded. */
const FOLDED_MS = 5000
const RESULTS: ReadonlySet<string> = new Set(['KernelsSimulated', 'KernelsPredicted', 'StepsPredicted', 'RequestPredicted', 'AccuracyMeasured'])

interface Props {
  readonly recording: Recording
  /** Grows with the recording, which is the same object throughout. */
  readonly version: number
  readonly recordCount: number
  readonly at: Position
  readonly isReplay: boolean
  readonly link: Link
  readonly known: string
  /** The switch to the other clock. */
  readonly clocks: ReactNode
  /** Of the state at the log's end, where the run has ended. */
  readonly hash: string
  readonly onSeek: (at: Position | null) => void
}

/** The log as a track: what was known when. Its end is now. Simulated time is another clock, and the timeline's. */
export function TimeBar({ recording, version, recordCount, at, isReplay, link, known, clocks, hash, onSeek }: Props) {
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
      {clocks}
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
        <Density recording={recording} version={version} recordCount={recordCount} />
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
      <span className={styles.words} data-testid="moment" title={hash === '' ? undefined : `state at the end: ${hash}`}>
        {words}
      </span>
      <StateHash runId={recording.runId} at={at} isReplay={isReplay} ended={hash} />
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

/**
 * The hash of what is known at the moment shown, folded anew by the server where scrubbing rests; at the end it must be
 * the one that the run ended with.
 */
function StateHash({ runId, at, isReplay, ended }: { readonly runId: string; readonly at: Position; readonly isReplay: boolean; readonly ended: string }) {
  const [rested, setRested] = useState<Position | null>(null)
  useEffect(() => {
    const timer = window.setTimeout(() => setRested(at), RESTED_MS)
    return () => window.clearTimeout(timer)
  }, [at])
  const isResting = rested === at && (isReplay || ended !== '')
  const found = useQuery({
    queryKey: ['state', runId, at],
    queryFn: () => api.stateHash(runId, at),
    enabled: isResting,
    staleTime: Infinity,
    retry: false,
  })
  // Its place is kept while nothing is known, so that the track never changes its length.
  if (!isResting || found.data === undefined) return <span className={styles.state}>{isResting && !found.isError ? 'state …' : ''}</span>
  const short = found.data.slice(0, 8)
  if (isReplay) {
    return (
      <span className={styles.state} title={`State at this moment, folded anew: ${found.data}`}>
        state <code>{short}</code>
      </span>
    )
  }
  return found.data === ended ? (
    <span className={`${styles.state} ${styles.same}`} title={`Folded anew, the log gives the state that the run ended with: ${ended}`}>
      identical end state <code>{short}</code>
    </span>
  ) : (
    <span className={`${styles.state} ${styles.differs}`} title={`The run ended with ${ended}; the log gives ${found.data}. Look closer with: cascade replay ${runId} --verify`}>
      state differs <code>{short}</code>
    </span>
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

interface Bin {
  results: number
  others: number
  /** Nothing was said for a while just before it: the stretch is folded. */
  isAfterIdle: boolean
}

/** Where in the log results came, what else was said, and where nothing was for so long that it is left out. */
const Density = memo(function Density({ recording, recordCount }: { readonly recording: Recording; readonly version: number; readonly recordCount: number }) {
  if (recordCount === 0) return null
  const bins = binsOf(recording, recordCount)
  const most = Math.max(1, ...bins.map(({ results, others }) => results + others))
  const high = (value: number) => (value > 0 ? 2 + (12 * value) / most : 0)
  const bars = (from: (bin: Bin) => number, to: (bin: Bin) => number) =>
    bins.map((bin, at) => (to(bin) > from(bin) ? `M${at + 0.5} ${16 - high(from(bin))}V${16 - high(to(bin))}` : '')).join('')
  const folds = bins.map(({ isAfterIdle }, at) => (isAfterIdle ? `M${at} 1l.6 1.5l-1.2 1.5l.6 1.5` : '')).join('')
  return (
    <svg className={styles.density} viewBox={`0 0 ${BINS} 16`} preserveAspectRatio="none" aria-hidden="true">
      <path d={bars(() => 0, ({ others }) => others)} className={styles.others} />
      <path d={bars(({ others }) => others, ({ results, others }) => results + others)} className={styles.results} />
      <path d={folds} className={styles.folds} />
    </svg>
  )
})

function binsOf(recording: Recording, recordCount: number): readonly Bin[] {
  const bins = Array.from({ length: BINS }, (): Bin => ({ results: 0, others: 0, isAfterIdle: false }))
  let before: number | null = null
  for (const record of recording.records) {
    const bin = bins[Math.min(BINS - 1, Math.floor((record.position / recordCount) * BINS))]
    if (bin === undefined) continue
    if (RESULTS.has(record.type)) bin.results += 1
    else bin.others += record.type === 'KernelTaskTraced' ? 0.2 : 1
    if (before !== null && record.at - before > FOLDED_MS) bin.isAfterIdle = true
    before = record.at
  }
  return bins
}
