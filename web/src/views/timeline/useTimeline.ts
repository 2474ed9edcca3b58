import { useEffect, useRef, useState, useSyncExternalStore, type RefObject } from 'react'
import type { ConfigSaid, FromTimeline, PerfSaid, ToTimeline, View } from '../../canvas/protocol'
import { onTheme, resolvedColours } from '../../lib/colours'
import { isDark, isMotionReduced, onPreferences, preferences } from '../../lib/preferences'

type Said<Op extends FromTimeline['op']> = Extract<FromTimeline, { readonly op: Op }>

/** The newest of each thing that the timeline's worker says; a hover says nothing here, see `onHover`. */
export interface Heard {
  readonly status: Said<'status'> | null
  readonly selected: Said<'selected'> | null
  readonly clock: Said<'clock'> | null
  readonly twin: Said<'twin'> | null
}

interface Options {
  readonly traceId: string
  readonly configs: readonly ConfigSaid[]
  readonly source: string
  readonly view: Partial<View>
  readonly onView: (view: View, isJump: boolean) => void
  readonly onHover: (said: Said<'hover'>) => void
}

export interface Controls {
  readonly send: (said: ToTimeline) => void
  readonly heard: Heard
}

const NOTHING: Heard = { status: null, selected: null, clock: null, twin: null }

/** A canvas in the holder, drawn by a worker of its own for as long as the same configs are shown. */
export function useTimeline(holder: RefObject<HTMLDivElement | null>, options: Options): Controls {
  const [heard, setHeard] = useState(NOTHING)
  const [link] = useState(() => new WorkerLink())
  const latest = useRef(options)
  useEffect(() => {
    latest.current = options
  })
  const { traceId } = options
  const shown = options.configs.map(({ id, letter }) => `${letter}${id}`).join()
  useEffect(() => {
    const place = holder.current
    if (place === null || traceId === '' || shown === '') return undefined
    const canvas = document.createElement('canvas')
    canvas.style.cssText = 'display:block;width:100%;height:100%;touch-action:none'
    place.append(canvas)
    const worker = new Worker(new URL('../../canvas/timeline.worker.ts', import.meta.url), { type: 'module' })
    link.attach(worker)
    worker.onmessage = ({ data }: MessageEvent<FromTimeline>) => {
      if (data.op === 'hover') latest.current.onHover(data)
      else if (data.op === 'view') latest.current.onView(data.view, data.isJump)
      else if (data.op === 'cursor') canvas.style.cursor = data.cursor
      else if (data.op === 'perf') showPerf(data.perf)
      else setHeard((before) => ({ ...before, [data.op]: data }))
    }
    const offscreen = canvas.transferControlToOffscreen()
    const { configs, source, view } = latest.current
    worker.postMessage({ op: 'start', canvas: offscreen, traceId, configs, source, view } satisfies ToTimeline, [offscreen])
    link.send({ op: 'motion', isReduced: isMotionReduced() })
    const ignore = listen(canvas, (said) => link.send(said))
    const resized = new ResizeObserver(([entry]) => {
      if (entry === undefined) return
      link.send({ op: 'size', width: entry.contentRect.width, height: entry.contentRect.height, ratio: window.devicePixelRatio })
    })
    resized.observe(place)
    return () => {
      ignore()
      resized.disconnect()
      worker.terminate()
      link.attach(null)
      canvas.remove()
      setHeard(NOTHING)
    }
  }, [holder, link, traceId, shown])
  useTheme(link, shown)
  return { send: link.send, heard }
}

/** To whichever worker draws now; without one, what is said is about nothing and lost. */
class WorkerLink {
  #worker: Worker | null = null
  readonly attach = (worker: Worker | null): void => {
    this.#worker = worker
  }
  readonly send = (said: ToTimeline): void => this.#worker?.postMessage(said)
}

/** Colours once, and again with every change of the theme. */
function useTheme(link: WorkerLink, shown: string): void {
  const stored = useSyncExternalStore(onPreferences, preferences)
  useEffect(() => {
    const tell = () => link.send({ op: 'theme', colours: resolvedColours(), isDark: isDark() })
    tell()
    return onTheme(tell)
  }, [link, stored, shown])
}

/** Pointer and wheel as plain numbers; React never hears of them. */
function listen(canvas: HTMLCanvasElement, send: (said: ToTimeline) => void): () => void {
  const stop = new AbortController()
  const { signal } = stop
  const at = (event: MouseEvent) => {
    const box = canvas.getBoundingClientRect()
    // Under `zoom` of a wall display the box is scaled, the canvas's own pixels are not.
    const scale = canvas.offsetWidth > 0 ? box.width / canvas.offsetWidth : 1
    return { x: (event.clientX - box.left) / scale, y: (event.clientY - box.top) / scale }
  }
  const point = (kind: 'move' | 'down' | 'up' | 'double', event: MouseEvent) =>
    send({ op: 'pointer', kind, ...at(event), isShift: event.shiftKey, button: event.button })
  canvas.addEventListener('pointermove', (event) => point('move', event), { signal })
  canvas.addEventListener('pointerdown', (event) => {
    canvas.setPointerCapture(event.pointerId)
    point('down', event)
  }, { signal })
  canvas.addEventListener('pointerup', (event) => point('up', event), { signal })
  canvas.addEventListener('dblclick', (event) => point('double', event), { signal })
  canvas.addEventListener('pointerleave', () => send({ op: 'pointer', kind: 'leave', x: 0, y: 0, isShift: false, button: 0 }), { signal })
  canvas.addEventListener(
    'wheel',
    (event) => {
      event.preventDefault()
      const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1
      send({ op: 'wheel', ...at(event), dx: event.deltaX * lines, dy: event.deltaY * lines * (event.ctrlKey ? 4 : 1), isShift: event.shiftKey })
    },
    { signal, passive: false },
  )
  return () => stop.abort()
}

/** For whoever measures: the newest figures, as text on the page where `?perf=1` asks for them. */
function showPerf(perf: PerfSaid): void {
  const place = document.querySelector<HTMLElement>('[data-testid=perf]')
  if (place !== null) place.textContent = JSON.stringify(perf)
}
