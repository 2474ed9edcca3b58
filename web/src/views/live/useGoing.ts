import { useQuery } from '@tanstack/react-query'
import { useEffect, useMemo, useRef, useState } from 'react'
import type { Layout } from '../../canvas/launches'
import { ask } from '../../lib/api'
import { isOver, progress, requestedConfigs, type Run } from '../../store/run'
import type { RunView } from '../run/runContext'
import type { Going } from './Tiles'

const LOOK_EVERY_MS = 500
const STALLED_AFTER_S = 10
/** Below this many results since one began to look, a rate means nothing. */
const RESULTS_MIN = 3

/** What is left: the weight of each task, seconds to go, and for how long nothing was said. */
export function useGoing({ run, head, recording, isReplay }: RunView): Going & { readonly silentS: number | null } {
  const weights = useWeights(head, !isOver(run))
  const [moment, setMoment] = useState<{ readonly etas: ReadonlyMap<string, number>; readonly silentS: number | null }>({ etas: new Map(), silentS: null })
  const isGoing = run.status === 'running' && !isReplay
  const began = useRef(new Map<string, { readonly at: number; readonly done: number }>())
  const newest = useRef(run)
  useEffect(() => {
    newest.current = run
  })
  useEffect(() => {
    if (!isGoing) return undefined
    const since = Date.now()
    const look = () => {
      const now = Date.now()
      const etas = new Map<string, number>()
      for (const config of requestedConfigs(newest.current)) {
        const { done, total } = progress(newest.current, config)
        const first = began.current.get(config.spec.config_id)
        if (first === undefined) began.current.set(config.spec.config_id, { at: now, done })
        else if (done - first.done >= RESULTS_MIN && done < total) {
          etas.set(config.spec.config_id, (((total - done) / (done - first.done)) * (now - first.at)) / 1000)
        }
      }
      const silentS = (now - Math.max(since, recording.records.at(-1)?.at ?? 0)) / 1000
      setMoment({ etas, silentS: silentS >= STALLED_AFTER_S ? silentS : null })
    }
    look()
    const timer = window.setInterval(look, LOOK_EVERY_MS)
    return () => window.clearInterval(timer)
  }, [isGoing, recording])
  return isGoing ? { weights, ...moment } : { weights, etas: new Map(), silentS: null }
}

/** head: the trace as it is by now, also where an earlier moment is shown: its layout is asked for once. */
function useWeights(head: Run, isWanted: boolean): ReadonlyMap<string, number> | null {
  const { traceId, status } = head.trace
  const layout = useQuery({
    queryKey: ['layout', traceId, status === 'complete'],
    queryFn: () => ask<Layout>(`/api/traces/${encodeURIComponent(traceId)}/layout`),
    enabled: traceId !== '' && isWanted,
    staleTime: Infinity,
    refetchInterval: status === 'complete' ? false : 2000,
  })
  return useMemo(() => {
    if (layout.data === undefined) return null
    const isMeasured = layout.data.tasks.some(({ measured_ns: measured }) => measured !== null)
    return new Map(
      layout.data.tasks.map(({ task_id: id, launch_count: launches, measured_ns: measured }) => [id, launches * (isMeasured ? (measured ?? 0) : 1)]),
    )
  }, [layout.data])
}
