import { getRouteApi } from '@tanstack/react-router'
import { useCallback, useEffect, useMemo, useRef, useState } from 'react'
import type { ConfigSaid, View } from '../../canvas/protocol'
import { count } from '../../lib/format'
import { classOf, isHypothetical, letter, shortName } from '../../lib/gpus'
import { requestedConfigs, type Run } from '../../store/run'
import { InInspector, useInspector } from '../Inspector'
import { useRun } from '../run/runContext'
import type { timelineSearch } from '../search'
import { Empty, Strip } from '../States'
import { AreaDetails, LaunchDetails, sentenceOf } from './Details'
import { HoverCard, type HoverCardHandle } from './HoverCard'
import styles from './TimelinePage.module.css'
import { Toolbar } from './Toolbar'
import { Transport } from './Transport'
import { Twin } from './Twin'
import { useTimeline } from './useTimeline'
import { useTimelineKeys } from './useTimelineKeys'

const route = getRouteApi('/runs/$runId/timeline')
const GROUPS_AT_ONCE = 8

/** Where time goes, at every zoom, on every GPU at once. */
export function TimelinePage() {
  const { run, head, isReplay } = useRun()
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const holder = useRef<HTMLDivElement>(null)
  const said = useRef<string | null>(null)
  const hover = useRef<HoverCardHandle>(null)
  const inspector = useInspector()
  const [hasTwin, setTwin] = useState(search.twin === true)
  const configs = useMemo(() => shownConfigs(head, search.lanes), [head, search.lanes])
  const view = useMemo(() => viewOf(search), [search])
  const { send, heard } = useTimeline(holder, {
    traceId: head.trace.traceId,
    configs,
    source: `${head.trace.sourceGpu ?? 'source'}, measured`,
    view,
    onHover: ({ hover: one }) => hover.current?.show(one),
    onView: (now, isJump) => {
      said.current = keyOf(now)
      void navigate({
        search: (before) => ({
          ...before,
          t0: now.t0 ?? undefined,
          t1: now.t1 ?? undefined,
          ph: now.playhead ?? undefined,
          sel: now.selected ?? undefined,
          area: now.area ?? undefined,
          align: now.align === 'time' ? undefined : now.align,
          color: now.colour === 'family' ? undefined : now.colour,
          q: now.query === '' ? undefined : now.query,
          base: now.baseline === (configs[0]?.letter ?? 'A') ? undefined : now.baseline,
          flags: now.flags.length === 0 ? undefined : now.flags.map(({ time, name }) => `${time}~${name}`).join(','),
          pins: now.pins.length === 0 ? undefined : now.pins.join(),
          loop: now.isLooping ? 'area' : undefined,
        }),
        replace: !isJump,
        resetScroll: false,
      })
    },
  })
  // The address changed by other hands (Back, a link, the palette): look there.
  useEffect(() => {
    if (said.current !== null && said.current !== keyOf(view)) send({ op: 'view', view, isJump: true })
  }, [view, send])
  const { step } = search
  const { traceId } = head.trace
  useEffect(() => {
    if (step === undefined || traceId === '') return
    send({ op: 'step', step })
    void navigate({ search: (before) => ({ ...before, step: undefined }), replace: true, resetScroll: false })
  }, [step, traceId, send, navigate])
  const toggleTwin = useCallback(() => setTwin((now) => !now), [])
  useTimelineKeys(send, configs, toggleTwin)
  useResults(head, send)
  useReplayed(run, isReplay, send)
  useEffect(() => send({ op: 'twin', isOn: hasTwin }), [send, hasTwin, configs])
  const isPerf = search.perf === true
  useEffect(() => {
    if (!isPerf) return undefined
    // Whoever measures asks for the figures since the last time.
    const ask = () => send({ op: 'perf', isOn: true })
    ask()
    window.addEventListener('cascade:perf', ask)
    return () => window.removeEventListener('cascade:perf', ask)
  }, [send, isPerf, configs])

  const { status, selected, clock } = heard
  const { setOpen } = inspector
  const hasSelection = selected?.launch != null || selected?.area != null
  useEffect(() => {
    if (hasSelection) setOpen(true)
  }, [hasSelection, setOpen])

  if (configs.length === 0) {
    return <Empty>{head.status === 'unknown' ? 'Reading the run…' : 'This run has no config.'}</Empty>
  }
  return (
    <div className={styles.page}>
      <Toolbar
        view={view}
        status={status}
        configs={configs}
        hasTwin={hasTwin}
        onTwin={toggleTwin}
        send={send}
      />
      {status !== null && status.error !== '' && <Strip>{status.error}</Strip>}
      <div className={styles.stage}>
        <div
          ref={holder}
          className={styles.canvas}
          role="application"
          tabIndex={0}
          aria-label={`Timeline of ${configs.length} GPUs. Arrows move between launches, T shows the same as a table, ? lists all keys.`}
        />
        <HoverCard ref={hover} />
        {status !== null && status.loaded < status.total && (
          <p className={styles.loading} role="status">
            {count(status.loaded)} of {count(status.total)} launches
          </p>
        )}
        {status !== null && status.total === 0 && status.error === '' && (
          <p className={styles.loading}>{status.isComplete ? 'This trace has no launch.' : 'Waiting for launches…'}</p>
        )}
        {hasTwin && <Twin twin={heard.twin} selected={selected?.launch?.row} onSelect={(sel) => send({ op: 'view', view: { selected: sel }, isJump: true })} />}
      </div>
      <Transport clock={clock} status={status} isLooping={view.isLooping === true} send={send} />
      <p className="visually-hidden" aria-live="polite">
        {selected?.launch == null ? '' : sentenceOf(selected.launch)}
      </p>
      {isPerf && <output data-testid="perf" className="visually-hidden" />}
      {selected?.launch != null && (
        <InInspector title="Launch">
          <LaunchDetails launch={selected.launch} />
        </InInspector>
      )}
      {selected?.area != null && (
        <InInspector title="Area">
          <AreaDetails area={selected.area} />
        </InInspector>
      )}
    </div>
  )
}

/** Letters are the run's; `lanes=A,C` chooses some. */
function shownConfigs(run: Run, lanes: string | undefined): readonly ConfigSaid[] {
  const chosen = lanes?.split(',')
  return requestedConfigs(run)
    .map(({ spec }, index): ConfigSaid => {
      const isVariant = isHypothetical(spec.label)
      return {
        id: spec.config_id,
        runId: run.runId,
        configId: spec.config_id,
        letter: letter(index),
        name: `${shortName(spec.gpu)}${isVariant ? '*' : ''}`,
        label: spec.label,
        isVariant,
        token: isVariant ? 'hypothetical' : classOf(spec.gpu),
      }
    })
    .filter((config) => chosen === undefined || chosen.includes(config.letter))
    .slice(0, GROUPS_AT_ONCE)
}

type Search = ReturnType<typeof timelineSearch>

function viewOf(search: Search): Partial<View> {
  return {
    t0: search.t0 ?? null,
    t1: search.t1 ?? null,
    playhead: search.ph ?? null,
    selected: search.sel ?? null,
    area: search.area ?? null,
    align: search.align ?? 'time',
    colour: search.color ?? 'family',
    query: search.q ?? '',
    ...(search.base === undefined ? {} : { baseline: search.base }),
    flags: (search.flags ?? '').split(',').flatMap((flag) => {
      const [time, name] = flag.split('~')
      return time === undefined || name === undefined || !Number.isFinite(Number(time)) ? [] : [{ time: Number(time), name }]
    }),
    pins: search.pins?.split(',').filter(Boolean) ?? [],
    isLooping: search.loop !== undefined,
  }
}

/** What of a view an address tells, as one text to compare. */
function keyOf(view: Partial<View>): string {
  const { t0 = null, t1 = null, playhead = null, selected = null, area = null, align = 'time', colour = 'family', query = '', flags = [], pins = [], isLooping = false } = view
  return JSON.stringify([t0, t1, playhead, selected, area, align, colour, query, flags, pins, isLooping])
}

/** Each time a config knows more, its lanes are asked for anew. */
function useResults(run: Run, send: ReturnType<typeof useTimeline>['send']): void {
  const known = useRef(new Map<string, string>())
  useEffect(() => {
    for (const { spec, results, predicted } of requestedConfigs(run)) {
      const now = `${results.size} ${predicted === null ? '' : 'predicted'}`
      const before = known.current.get(spec.config_id)
      known.current.set(spec.config_id, now)
      // The first look is the worker's own.
      if (before !== undefined && before !== now) send({ op: 'results', id: spec.config_id })
    }
  }, [run, send])
}

/** In the past, a config that was not predicted yet is drawn as pending. */
function useReplayed(run: Run, isReplay: boolean, send: ReturnType<typeof useTimeline>['send']): void {
  const known = isReplay
    ? requestedConfigs(run)
        .filter(({ predicted }) => predicted !== null)
        .map(({ spec }) => spec.config_id)
        .join()
    : null
  useEffect(() => send({ op: 'results-hidden', known: known === null ? null : known.split(',') }), [known, send])
}
