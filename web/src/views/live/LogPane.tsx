import { useVirtualizer } from '@tanstack/react-virtual'
import { getRouteApi } from '@tanstack/react-router'
import { useEffect, useMemo, useRef, useState } from 'react'
import { counted } from '../../lib/format'
import { letter, shortName } from '../../lib/gpus'
import { requestedConfigs, type Log, type Run } from '../../store/run'
import styles from './LogPane.module.css'

const LINE_PX = 20
const route = getRouteApi('/runs/$runId/')

/** What the simulators say, all of them or one; follows the newest line until one scrolls away from it. */
export function LogPane({ run }: { readonly run: Run }) {
  const { log: chosen } = route.useSearch()
  const navigate = route.useNavigate()
  const names = useMemo(
    () => new Map(requestedConfigs(run).map(({ spec }, index) => [spec.config_id, { letter: letter(index), name: shortName(spec.gpu), label: spec.label }])),
    [run],
  )
  const configId = [...names].find(([, { label }]) => label === chosen)?.[0]
  const lines = useMemo(() => linesOf(run.log, configId), [run.log, configId])
  const [isFollowing, setIsFollowing] = useState(true)
  const scroller = useRef<HTMLDivElement>(null)
  // The library's functions change with every call by design; nothing here remembers them.
  // eslint-disable-next-line react-hooks/incompatible-library
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => LINE_PX,
    overscan: 20,
  })
  useEffect(() => {
    if (isFollowing && lines.length > 0) rows.scrollToIndex(lines.length - 1, { align: 'end' })
  }, [isFollowing, lines.length, rows])
  const choose = (label: string) =>
    void navigate({
      search: (before) => ({ ...before, log: label === '' ? undefined : label }),
      replace: true,
      resetScroll: false,
    })
  return (
    <section className="panel" aria-labelledby="log">
      <div className={styles.head}>
        <h2 id="log">Log</h2>
        <label className="visually-hidden" htmlFor="log-of">
          Whose log
        </label>
        <select id="log-of" className="field" value={chosen ?? ''} onChange={(event) => choose(event.target.value)}>
          <option value="">all simulators</option>
          {[...names].map(([id, { letter: of, name, label }]) => (
            <option key={id} value={label}>
              {of} {name}
            </option>
          ))}
        </select>
        <label className={styles.follow}>
          <input type="checkbox" checked={isFollowing} onChange={(event) => setIsFollowing(event.target.checked)} />
          Follow
        </label>
        <span className={styles.count}>{counted(lines.length, 'line')}</span>
      </div>
      <div
        ref={scroller}
        className={styles.scroller}
        role="log"
        aria-labelledby="log"
        aria-live="off"
        tabIndex={0}
        onWheel={(event) => {
          if (event.deltaY < 0) setIsFollowing(false)
        }}
        onKeyDown={(event) => {
          if (['ArrowUp', 'PageUp', 'Home'].includes(event.key)) setIsFollowing(false)
          if (event.key === 'End') setIsFollowing(true)
        }}
      >
        {lines.length === 0 && <p className={styles.empty}>No line yet.</p>}
        <div className={styles.lines} style={{ height: rows.getTotalSize() }}>
          {rows.getVirtualItems().map((row) => {
            const line = lines[row.index]
            return (
              <div key={row.key} className={styles.line} style={{ transform: `translateY(${row.start}px)` }}>
                <span className={styles.number}>{row.index + 1}</span>
                <span className={styles.of}>{names.get(line?.configId ?? '')?.letter ?? 'src'}</span>
                <span>{line?.text}</span>
              </div>
            )
          })}
        </div>
      </div>
    </section>
  )
}

interface Line {
  readonly configId: string
  readonly text: string
}

function linesOf(log: Log, configId: string | undefined): readonly Line[] {
  return log.chunks
    .filter((chunk) => configId === undefined || chunk.configId === configId)
    .flatMap((chunk) => chunk.lines.map((text) => ({ configId: chunk.configId, text })))
}
