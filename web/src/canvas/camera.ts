/** What of the axis is in view: [t0, t1] in ns over `width` pixels. */
export interface Camera {
  readonly t0: number
  readonly t1: number
}

/** No closer than a nanosecond per 64 pixels, and no further than twice everything. */
const SPAN_NS_MIN = 16

export const pixelsPerNs = ({ t0, t1 }: Camera, width: number): number => width / (t1 - t0)

export const xAt = (camera: Camera, width: number, time: number): number => (time - camera.t0) * pixelsPerNs(camera, width)

export const timeAt = (camera: Camera, width: number, x: number): number => camera.t0 + (x / width) * (camera.t1 - camera.t0)

/** Zoom so that the time under x stays under it. factor < 1 comes closer. */
export function zoomedAt(camera: Camera, width: number, x: number, factor: number, end: number): Camera {
  const span = camera.t1 - camera.t0
  const next = Math.min(Math.max(span * factor, SPAN_NS_MIN), Math.max(2 * end, SPAN_NS_MIN))
  const fixed = timeAt(camera, width, x)
  const t0 = fixed - (x / width) * next
  return kept({ t0, t1: t0 + next }, end)
}

export function panned(camera: Camera, width: number, pixels: number, end: number): Camera {
  const shift = pixels / pixelsPerNs(camera, width)
  return kept({ t0: camera.t0 + shift, t1: camera.t1 + shift }, end)
}

/** Never lost: half of the view at least overlaps what there is. */
function kept({ t0, t1 }: Camera, end: number): Camera {
  const span = t1 - t0
  const first = Math.min(Math.max(t0, -span / 2), Math.max(end - span / 2, -span / 2))
  return first === t0 ? { t0, t1 } : { t0: first, t1: first + span }
}

/** All of [t0, t1] with a margin at both sides. */
export function fitted(t0: number, t1: number, margin = 0.02): Camera {
  const span = Math.max(t1 - t0, SPAN_NS_MIN)
  return { t0: t0 - span * margin, t1: t0 + span * (1 + margin) }
}

/** On the way from one camera to another; eased out. Spans change by equal ratios, so that a zoom looks even. */
export function between(from: Camera, to: Camera, share: number): Camera {
  if (share >= 1) return to
  const eased = 1 - (1 - share) ** 3
  const [a, b] = [from.t1 - from.t0, to.t1 - to.t0]
  const span = a * (b / a) ** eased
  // The middle moves so that what both views share stays put while the span changes.
  const way = Math.abs(b - a) < 1e-9 * a ? eased : (span - a) / (b - a)
  const middle = (from.t0 + from.t1) / 2 + ((to.t0 + to.t1) / 2 - (from.t0 + from.t1) / 2) * way
  return { t0: middle - span / 2, t1: middle + span / 2 }
}

export interface Ticks {
  readonly times: readonly number[]
  /** Every how many ns; 1, 2 or 5 times a power of ten. */
  readonly every: number
}

/** Ticks at least `apart` pixels from each other. */
export function ticks(camera: Camera, width: number, apart = 96): Ticks {
  const least = apart / pixelsPerNs(camera, width)
  const power = 10 ** Math.floor(Math.log10(least))
  const every = [1, 2, 5, 10].map((step) => step * power).find((step) => step >= least) ?? 10 * power
  const times: number[] = []
  for (let time = Math.ceil(camera.t0 / every) * every; time <= camera.t1; time += every) times.push(time)
  return { times, every }
}
