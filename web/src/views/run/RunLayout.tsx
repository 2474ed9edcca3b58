import { getRouteApi, Link, Outlet, useMatchRoute } from '@tanstack/react-router'
import { memo, useEffect, useMemo, useRef, useState, useSyncExternalStore } from 'react'
import { clock, count } from '../../lib/format'
import type { Binding } from '../../lib/keys'
import { position, type Position } from '../../lib/units'
import { RunFeed } from '../../store/feed'
import type { Recording } from '../../store/recording'
import { isOver, isPredicted, requestedConfigs, type Run } from '../../store/run'
import { InspectorFrame } from '../Inspector'
import { Problem } from '../Problem'
import { Strip } from '../States'
import { useKeys } from '../useKeys'
import { RunContext, type RunView } from './runContext'
import { RunHeader } from './RunHeader'
import styles from './RunLayout.module.css'
import { TimeBar } from './TimeBar'
import bar from './TimeBar.module.css'

const route = getRouteApi('/runs/$runId')
const ADDRESS_EVERY_MS = 250

export const TABS = [
  { to: '/runs/$runId', name: 'Live', keys: 'g r' },
  { to: '/runs/$runId/timeline', name: 'Timeline', keys: 'g t' },
  { to: '/runs/$runId/kernels', name: 'Kernels', keys: 'g k' },
  { to: '/runs/$runId/predictions', name: 'Predictions', keys: 'g p' },
  { to: '/runs/$runId/whatif', name: 'What-if', keys: 'g w' },
  { to: '/runs/$runId/accuracy', name: 'Accuracy', keys: 'g a' },
] as const

// One element throughout: scrubbing renders what shows the moment, and nothing of the frame around it.
const PAGE = (
  <InspectorFrame>
    <Outlet />
  </InspectorFrame>
)

export function RunLayout() {
  const { runId } = route.useParams()
  return <OneRun key={runId} runId={runId} />
}

/** One run, now or as it was known at a position of its log: header, tabs, the tab's page, inspector, time bar. */
function OneRun({ runId }: { readonly runId: string }) {
  const [feed] = useState(() => new RunFeed(runId))
  const shown = useSyncExternalStore(feed.subscribe, feed.view)
  const [at, seek] = useReplayPosition()
  const { recording, version, recordCount, link, error } = shown
  const isReplay = at !== null && at < recordCount
  // version: the recording grows in place.
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const run = useMemo(() => (isReplay ? recording.at(at) : recording.head), [recording, version, at, isReplay])
  const view = useMemo<RunView>(
    () => ({ runId, run, head: recording.head, recording, version, recordCount, at, isReplay, link, seek }),
    [runId, run, recording, version, recordCount, at, isReplay, link, seek],
  )
  const clocks = useMemo(() => <Clocks runId={runId} />, [runId])
  useTabKeys(runId)
  usePerf(recording, version)
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
  const time = recording.timeAt(isReplay ? at : position(recordCount))
  const { trace } = run
  return (
    <RunContext value={view}>
      <div className={`${styles.run} ${isReplay ? styles.replay : ''}`}>
        <div className={styles.top}>
          <RunHeader
            runId={runId}
            name={trace.name}
            provenance={trace.provenance}
            status={run.status}
            reason={run.reason}
            unknownCount={run.unknownCount}
            head={recording.head}
            isReplay={isReplay}
          />
          <Tabs runId={runId} compared={requestedConfigs(recording.head).slice(0, 8).map(({ spec }) => spec.config_id).join()} />
          {link === 'reconnecting' && (
            <Strip>
              Reconnecting. Shown as of {time === null ? 'before' : clock(time)} (record {count(recordCount)}).
            </Strip>
          )}
        </div>
        <div className={styles.middle}>{PAGE}</div>
        <TimeBar
          recording={recording}
          version={version}
          recordCount={recordCount}
          at={isReplay ? at : position(recordCount)}
          isReplay={isReplay}
          link={link}
          known={knownWords(run)}
          clocks={clocks}
          hash={recording.head.stateHash}
          onSeek={seek}
        />
      </div>
    </RunContext>
  )
}

/** compared: ids of configs, apart by commas. */
const Tabs = memo(function Tabs({ runId, compared }: { readonly runId: string; readonly compared: string }) {
  return (
    <nav className={styles.tabs} aria-label="Of this run">
      {TABS.map(({ to, name }) => (
        <Link key={to} to={to} params={{ runId }} activeOptions={{ exact: true, includeSearch: false }} activeProps={{ 'aria-current': 'page' }}>
          {name}
        </Link>
      ))}
      <Link to="/compare" search={{ v: compared.split(',').filter(Boolean).map((config) => `${runId}.${config}`) }}>
        Compare
      </Link>
    </nav>
  )
})

/** Two clocks that are never mixed: the log's, which says what was known when, and the simulated one of the timeline. */
function Clocks({ runId }: { readonly runId: string }) {
  const isTimeline = useMatchRoute()({ to: '/runs/$runId/timeline', params: { runId } }) !== false
  return (
    <span className={bar.clocks} role="group" aria-label="Clock">
      <Link to="/runs/$runId/timeline" params={{ runId }} activeProps={{}} title="Simulated time, played on the timeline" aria-current={isTimeline ? 'true' : undefined}>
        Simulated
      </Link>
      <Link to="/runs/$runId" params={{ runId }} activeOptions={{ exact: true, includeSearch: false }} activeProps={{}} title="The log: what was known when" aria-current={isTimeline ? undefined : 'true'}>
        Log
      </Link>
    </span>
  )
}

/** Where `?perf=1` asks for it: how long an event took from being said to being painted, newest last. */
function usePerf(recording: Recording, version: number): void {
  const { perf } = route.useSearch()
  const seen = useRef({ records: 0, took: [] as number[] })
  useEffect(() => {
    if (perf !== true) return undefined
    const first = recording.records[seen.current.records]
    seen.current.records = recording.records.length
    if (first === undefined) return undefined
    // Effects run after React has written to the page; the frame after the next one shows it.
    const frame = requestAnimationFrame(() => {
      const { took } = seen.current
      took.push(Date.now() - first.at)
      if (took.length > 2000) took.shift()
      document.documentElement.dataset.perfFeed = JSON.stringify(took)
    })
    return () => cancelAnimationFrame(frame)
  }, [perf, recording, version])
}

function useTabKeys(runId: string): void {
  const navigate = route.useNavigate()
  useKeys(
    useMemo<readonly Binding[]>(
      () =>
        TABS.map(({ to, name, keys }) => ({
          keys,
          words: name,
          group: 'Of this run',
          run: () => void navigate({ to, params: { runId } }),
        })),
      [navigate, runId],
    ),
  )
}

/** The moment shown, in the address too; written there at most four times a second, and never as a step of Back. */
function useReplayPosition(): readonly [Position | null, (at: Position | null) => void] {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const [at, setAt] = useState<Position | null>(search.at === undefined ? null : position(search.at))
  const timer = useRef<number | undefined>(undefined)
  useEffect(() => () => window.clearTimeout(timer.current), [])
  const seek = useMemo(
    () => (next: Position | null) => {
      setAt(next)
      window.clearTimeout(timer.current)
      timer.current = window.setTimeout(() => {
        void navigate({ to: '.', search: (before) => ({ ...before, at: next ?? undefined }), replace: true, resetScroll: false })
      }, ADDRESS_EVERY_MS)
    },
    [navigate],
  )
  return [at, seek]
}

function knownWords(run: Run): string {
  const configs = requestedConfigs(run)
  if (configs.length === 0) return 'nothing known yet'
  const predicted = configs.filter(isPredicted).length
  if (predicted === configs.length && isOver(run)) return 'all known'
  return `${predicted} of ${configs.length} GPUs known`
}
