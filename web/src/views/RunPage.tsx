import { getRouteApi, Link } from '@tanstack/react-router'
import { useEffect, useMemo, useRef, useState, useSyncExternalStore } from 'react'
import { clock, count } from '../lib/format'
import { position, type Position } from '../lib/units'
import { RunFeed } from '../store/feed'
import { isOver, isPredicted, requestedConfigs, type Run } from '../store/run'
import { Headline } from './Headline'
import { LogPane } from './LogPane'
import { Problem } from './Problem'
import { Results } from './Results'
import { RunHeader } from './RunHeader'
import styles from './RunPage.module.css'
import { Tiles } from './Tiles'
import { TimeBar } from './TimeBar'

const route = getRouteApi('/runs/$runId')
const ADDRESS_EVERY_MS = 250

export function RunPage() {
  const { runId } = route.useParams()
  return <OneRun key={runId} runId={runId} />
}

/** One run, now or as it was known at a position of its log. */
function OneRun({ runId }: { readonly runId: string }) {
  const [feed] = useState(() => new RunFeed(runId))
  const view = useSyncExternalStore(feed.subscribe, feed.view)
  const [at, setAt] = useReplayPosition()
  const { recording, version, recordCount, link, error } = view
  const isReplay = at !== null && at < recordCount
  // version: the recording grows in place.
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const run = useMemo(() => (isReplay ? recording.at(at) : recording.head), [recording, version, at, isReplay])
  useEffect(() => {
    document.title = run.trace.name ? `${run.trace.name} · Cascade` : 'Cascade'
    return () => {
      document.title = 'Cascade'
    }
  }, [run.trace.name])
  if (link === 'refused') {
    return (
      <section className={styles.gone}>
        <h1>This run cannot be shown</h1>
        <Problem error={new Error(error)} />
        <Link to="/" className="button">
          All runs
        </Link>
      </section>
    )
  }
  const time = recording.timeAt(isReplay ? at : recordCount)
  return (
    <div className={`${styles.page} ${isReplay ? styles.replay : ''}`}>
      {link === 'reconnecting' && (
        <p role="status" className={styles.strip}>
          Reconnecting. Shown as of {time === null ? 'before' : clock(time)} (record {count(recordCount)}).
        </p>
      )}
      <RunHeader run={run} head={recording.head} isReplay={isReplay} />
      <Headline run={run} isReplay={isReplay} />
      <Tiles run={run} />
      <Results run={run} />
      <LogPane run={run} />
      <TimeBar
        recording={recording}
        recordCount={recordCount}
        at={isReplay ? at : position(recordCount)}
        isReplay={isReplay}
        link={link}
        known={knownWords(run)}
        onSeek={setAt}
      />
    </div>
  )
}

/** The moment shown, in the address too; written there at most four times a second, and never as a step of Back. */
function useReplayPosition(): readonly [Position | null, (at: Position | null) => void] {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const [at, setAt] = useState<Position | null>(search.at === undefined ? null : position(search.at))
  const timer = useRef<number | undefined>(undefined)
  const seek = (next: Position | null) => {
    setAt(next)
    window.clearTimeout(timer.current)
    timer.current = window.setTimeout(() => {
      void navigate({
        search: ({ log }) => ({ ...(log === undefined ? {} : { log }), ...(next === null ? {} : { at: next }) }),
        replace: true,
        resetScroll: false,
      })
    }, ADDRESS_EVERY_MS)
  }
  useEffect(() => () => window.clearTimeout(timer.current), [])
  return [at, seek]
}

function knownWords(run: Run): string {
  const configs = requestedConfigs(run)
  if (configs.length === 0) return 'nothing known yet'
  const predicted = configs.filter(isPredicted).length
  if (predicted === configs.length && isOver(run)) return 'all known'
  return `${predicted} of ${configs.length} GPUs known`
}
