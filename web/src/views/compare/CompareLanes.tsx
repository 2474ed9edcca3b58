import { useQuery } from '@tanstack/react-query'
import { getRouteApi } from '@tanstack/react-router'
import { useEffect, useMemo, useRef } from 'react'
import type { ConfigSaid } from '../../canvas/protocol'
import { api } from '../../lib/api'
import { isHypothetical, letter } from '../../lib/gpus'
import { HoverCard, type HoverCardHandle } from '../timeline/HoverCard'
import { AreaDetails, LaunchDetails } from '../timeline/Details'
import { useTimeline } from '../timeline/useTimeline'
import { useTimelineKeys } from '../timeline/useTimelineKeys'
import { InInspector, useInspector } from '../Inspector'
import { nameOf, tokenOf } from './ComparePage'
import type { Comparisons } from './comparison'
import styles from './CompareLanes.module.css'

const route = getRouteApi('/compare')
const nothing = () => undefined

/** The launches of all of them under each other, the pointer on the same launch in each. */
export function CompareLanes({ found }: { readonly found: Comparisons }) {
  const traceIds = new Set(found.versions.map(({ trace_id: id }) => id))
  return (
    <section className={`panel ${styles.section}`} aria-labelledby="lanes">
      <h2 id="lanes" className={styles.head}>
        Launches
      </h2>
      {traceIds.size === 1 ? (
        <Lanes found={found} traceId={[...traceIds][0] ?? ''} />
      ) : (
        <p className={styles.none}>They are of {traceIds.size} traces, so a launch of one is none of another; the table above matches their kernels.</p>
      )}
    </section>
  )
}

function Lanes({ found, traceId }: { readonly found: Comparisons; readonly traceId: string }) {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const holder = useRef<HTMLDivElement>(null)
  const hover = useRef<HoverCardHandle>(null)
  const gpus = useQuery({ queryKey: ['gpus'], queryFn: api.gpus, staleTime: Infinity })
  const { setOpen } = useInspector()
  const configs = useMemo(
    () =>
      found.versions.map((version, place): ConfigSaid => {
        const spec = gpus.data?.find((one) => one.spec.gpu === version.gpu)?.spec
        return {
          id: version.v,
          runId: version.run_id,
          configId: version.config_id,
          letter: letter(place),
          name: nameOf(spec, version.gpu_name, version.label),
          label: version.label,
          isVariant: isHypothetical(version.label),
          token: tokenOf(spec, version.label),
        }
      }),
    [found, gpus.data],
  )
  const baseline = letter(found.base)
  const { send, heard } = useTimeline(holder, {
    traceId: gpus.data === undefined ? '' : traceId,
    configs,
    source: 'as recorded',
    view: { t0: search.t0 ?? null, t1: search.t1 ?? null, align: search.align ?? 'step', baseline },
    onHover: ({ hover: said }) => hover.current?.show(said),
    onView: ({ t0, t1, align }, isJump) =>
      void navigate({
        search: (before) => ({ ...before, t0: t0 ?? undefined, t1: t1 ?? undefined, align: align === 'step' ? undefined : align }),
        replace: !isJump,
        resetScroll: false,
      }),
  })
  useTimelineKeys(send, configs, nothing)
  useEffect(() => send({ op: 'view', view: { baseline }, isJump: false }), [send, baseline, configs])
  const { selected } = heard
  const hasSelection = selected?.launch != null || selected?.area != null
  useEffect(() => {
    if (hasSelection) setOpen(true)
  }, [hasSelection, setOpen])
  return (
    <>
      <div className={styles.choices} role="group" aria-label="Align by">
        {(['step', 'kernel', 'time', 'progress'] as const).map((align) => (
          <button
            key={align}
            type="button"
            className="button quiet"
            aria-pressed={(search.align ?? 'step') === align}
            onClick={() => send({ op: 'view', view: { align }, isJump: false })}
          >
            {align}
          </button>
        ))}
      </div>
      <div className={styles.stage} style={{ height: 64 + configs.length * 76 }}>
        <div ref={holder} className={styles.canvas} role="application" tabIndex={0} aria-label="Launches of what is compared. ? lists all keys." />
        <HoverCard ref={hover} />
      </div>
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
    </>
  )
}
