import { getRouteApi } from '@tanstack/react-router'
import { memo, useEffect, useRef, useState, type ReactNode } from 'react'
import { api } from '../../lib/api'
import { counted, count } from '../../lib/format'
import { letter, shortName } from '../../lib/gpus'
import type { RunConfig } from '../../schema/events'
import { Problem } from '../Problem'
import styles from './LogPane.module.css'
import { LogView } from './logView'

const GROWS_EVERY_MS = 1000
const MOMENT_AFTER_MS = 80
const ADDRESS_AFTER_MS = 250
const route = getRouteApi('/runs/$runId/')

interface PaneProps {
  readonly runId: string
  readonly configs: readonly RunConfig[]
  readonly isGrowing: boolean
  /** Lines as known at a position of the run's log; null: now. */
  readonly at: number | null
}

/** What a config's simulator says, by number from the server; follows the newest line until one scrolls away from it. */
export const LogPane = memo(function LogPane({ runId, configs, isGrowing, at }: PaneProps) {
  const { log: chosen } = route.useSearch()
  const navigate = route.useNavigate()
  const config = configs.find(({ label }) => label === chosen) ?? configs[0]
  const choose = (label: string) => void navigate({ search: (before) => ({ ...before, log: label, line: undefined, q: undefined }), replace: true, resetScroll: false })
  return (
    <section className="panel" aria-labelledby="log">
      {config === undefined ? (
        <p className={styles.empty}>
          <span id="log">The log</span> begins with the run.
        </p>
      ) : (
        <OneLog
          key={config.config_id}
          runId={runId}
          configId={config.config_id}
          isGrowing={isGrowing}
          at={at}
          choice={
            <select className="field" aria-label="Whose log" value={config.label} onChange={(event) => choose(event.target.value)}>
              {configs.map(({ config_id: id, label, gpu }, index) => (
                <option key={id} value={label}>
                  {letter(index)} {shortName(gpu)}
                  {label.includes(':') ? ` ${label.slice(label.indexOf(':') + 1)}` : ''}
                </option>
              ))}
            </select>
          }
        />
      )}
    </section>
  )
})

interface OneLogProps {
  readonly runId: string
  readonly configId: string
  readonly isGrowing: boolean
  readonly at: number | null
  readonly choice: ReactNode
}

function OneLog({ runId, configId, isGrowing, at, choice }: OneLogProps) {
  const scroller = useRef<HTMLDivElement>(null)
  const view = useRef<LogView | null>(null)
  const [total, setTotal] = useState<number | null>(null)
  const [error, setError] = useState<Error | null>(null)
  const search = useLogSearch(runId, configId, at, setError)
  const [isFollowing, setFollowing] = useState(search.line < 0) // a link to a line opens there
  const moment = useRef(at)

  useEffect(() => {
    if (scroller.current === null) return undefined
    const made = new LogView({
      scroller: scroller.current,
      ask: (first, lines) => api.logLines(runId, configId, first, lines, moment.current),
      onTotal: setTotal,
      onFailed: setError,
      onScrolledAway: () => setFollowing(false),
      styles,
    })
    view.current = made
    made.refresh()
    return () => {
      made.close()
      view.current = null
    }
  }, [runId, configId])
  useEffect(() => {
    if (moment.current === at) return undefined
    moment.current = at
    // Where scrubbing rests: every moment on the way would be a question of its own.
    const timer = window.setTimeout(() => view.current?.refresh(), MOMENT_AFTER_MS)
    return () => window.clearTimeout(timer)
  }, [at])
  useEffect(() => view.current?.follow(isFollowing), [isFollowing])
  useEffect(() => {
    if (!isGrowing) {
      view.current?.refresh()
      return undefined
    }
    const timer = window.setInterval(() => view.current?.refresh(), GROWS_EVERY_MS)
    return () => window.clearInterval(timer)
  }, [isGrowing, runId, configId])
  const { query, line, goTo } = search
  useEffect(() => view.current?.show(query, line), [query, line])

  return (
    <>
      <div className={styles.head}>
        <h2 id="log">Log</h2>
        {choice}
        <label className={styles.follow}>
          <input type="checkbox" checked={isFollowing} onChange={(event) => setFollowing(event.target.checked)} />
          Follow
        </label>
        <form
          className={styles.find}
          onSubmit={(event) => {
            event.preventDefault()
            setFollowing(false)
            goTo(1)
          }}
        >
          <input
            className="field"
            type="search"
            aria-label="Search the log"
            placeholder="Search"
            value={query}
            onChange={(event) => search.setQuery(event.target.value)}
            onKeyDown={(event) => {
              if (event.key !== 'Enter' || !event.shiftKey) return
              event.preventDefault()
              setFollowing(false)
              goTo(-1)
            }}
          />
          <button type="button" className="button quiet" aria-label="Previous match" disabled={search.total === 0} onClick={() => goTo(-1)}>
            ↑
          </button>
          <button className="button quiet" aria-label="Next match" disabled={query === ''}>
            ↓
          </button>
          <span className={styles.hits} aria-live="polite">
            {search.words}
          </span>
        </form>
        <span className={styles.count}>{total === null ? '' : counted(total, 'line')}</span>
      </div>
      {error !== null && <Problem error={error} onRetry={() => {
        setError(null)
        view.current?.refresh()
      }} />}
      {total === 0 && <p className={styles.nothing}>{at === null ? 'No line yet.' : 'No line had been said by then.'}</p>}
      <div
        ref={scroller}
        className={styles.scroller}
        role="log"
        aria-labelledby="log"
        aria-live="off"
        tabIndex={0}
        onKeyDown={(event) => {
          if (event.key === 'End') setFollowing(true)
        }}
      />
    </>
  )
}

interface LogSearch {
  readonly query: string
  readonly setQuery: (query: string) => void
  /** The match shown; -1: none. */
  readonly line: number
  readonly total: number
  readonly words: string
  readonly goTo: (way: 1 | -1) => void
}

/** Matches come from the server a thousand at a time, from wherever one is. */
function useLogSearch(runId: string, configId: string, at: number | null, onError: (error: Error) => void): LogSearch {
  const address = route.useSearch()
  const [query, setText] = useState(address.q ?? '')
  const [line, setLine] = useState((address.line ?? 0) - 1) // people count lines from 1
  useLogAddress(query, line)
  const [found, setFound] = useState<{ readonly query: string; readonly lines: readonly number[]; readonly hasMore: boolean } | null>(null)
  const goTo = (way: 1 | -1) => {
    const wanted = query.trim()
    if (wanted === '') return
    const known = found?.query === wanted ? found.lines : []
    const next = way > 0 ? known.find((one) => one > line) : known.findLast((one) => one < line)
    if (next !== undefined) {
      setLine(next)
      return
    }
    if (way < 0) return
    api
      .logSearch(runId, configId, wanted, Math.max(0, line + 1), at)
      .then(async (answer) => (answer.matches.length > 0 || line < 0 ? answer : api.logSearch(runId, configId, wanted, 0, at)))
      .then(({ matches, next: after }) => {
        setFound({ query: wanted, lines: matches.map((one) => one.line), hasMore: after !== null })
        setLine(matches[0]?.line ?? -1)
      })
      .catch((error: unknown) => onError(error instanceof Error ? error : new Error(String(error))))
  }
  const isKnown = found !== null && found.query === query.trim()
  return {
    query,
    setQuery: (text) => {
      setText(text)
      setLine(-1)
    },
    line,
    total: isKnown ? found.lines.length : 0,
    words: isKnown ? matchWords(found.lines.length, found.hasMore, line) : '',
    goTo,
  }
}

/** The line shown and what is searched for, in the address a moment later: a link opens the log there. */
function useLogAddress(query: string, line: number): void {
  const navigate = route.useNavigate()
  const isFirst = useRef(true)
  useEffect(() => {
    if (isFirst.current) {
      isFirst.current = false
      return undefined
    }
    const timer = window.setTimeout(
      () => void navigate({ search: (before) => ({ ...before, q: query || undefined, line: line < 0 ? undefined : line + 1 }), replace: true, resetScroll: false }),
      ADDRESS_AFTER_MS,
    )
    return () => window.clearTimeout(timer)
  }, [navigate, query, line])
}

function matchWords(matches: number, hasMore: boolean, line: number): string {
  if (matches === 0) return 'no match'
  return `${count(matches)}${hasMore ? '+' : ''} ${matches === 1 && !hasMore ? 'match' : 'matches'}${line >= 0 ? `, line ${count(line + 1)}` : ''}`
}
