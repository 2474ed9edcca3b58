import { timeWithUnit } from '../lib/format'
import { ms } from '../lib/units'
import { ticks, xAt, type Camera } from './camera'
import type { Group, GroupLane } from './groups'
import type { Advances } from './labels'
import type { Flag } from './protocol'
import { CLASSES } from './pyramid'
import { emptyRow, rasterise, type Row } from './raster'
import { GUTTER, MINIMAP, RULER, TOP, type Place } from './scene'

type Rgb = readonly [number, number, number]
export type Colours = Readonly<Record<string, Rgb>>

/** All that one frame shows. */
export interface Frame {
  readonly width: number
  readonly height: number
  readonly ratio: number
  readonly camera: Camera
  readonly scrollY: number
  readonly end: number
  readonly groups: readonly Group[]
  readonly places: readonly Place[]
  /** Above the others, and not scrolled. */
  readonly pinned: readonly Place[]
  readonly pinnedHeight: number
  readonly tokens: readonly string[]
  readonly colours: Colours
  readonly isDark: boolean
  readonly labelOf: (task: number) => string
  readonly isCollective: (task: number) => boolean
  readonly stepName: (group: number) => string
  readonly phaseOf: (group: number) => string
  readonly baseline: string
  readonly selectedRow: number | null
  readonly selectedLetter: string
  readonly hoveredRow: number | null
  readonly area: { readonly t0: number; readonly t1: number } | null
  readonly playhead: number | null
  readonly flags: readonly Flag[]
  readonly liveEdge: number | null
  readonly isSearching: boolean
  readonly axisWord: (time: number, every: number) => string
}

const FONT = "11px 'Inter Variable', Inter, system-ui, 'Liberation Sans', sans-serif"
const BOLD = "650 11px 'Inter Variable', Inter, system-ui, 'Liberation Sans', sans-serif"
const PEAK = 4
const FAINT = 0.16

/** Paints frames; keeps what is costly to make anew between them. */
export class Painter {
  readonly #atlas = new OffscreenCanvas(1, 1)
  readonly #atlasContext = this.#atlas.getContext('2d')
  readonly #rows: Row[] = []
  readonly #minimap = new OffscreenCanvas(1, MINIMAP)
  #minimapOf: unknown = null
  #hatch: CanvasPattern | null = null
  #hatchOf = ''
  spans = 0
  /** Launches in view of the busiest lane, a pixel. */
  perPixel = 0

  constructor(
    readonly context: OffscreenCanvasRenderingContext2D,
    readonly advances: () => Advances,
  ) {}

  paint(frame: Frame): void {
    const { context } = this
    const { width, height, ratio } = frame
    context.setTransform(ratio, 0, 0, ratio, 0, 0)
    context.fillStyle = css(frame.colours.bg0)
    context.fillRect(0, 0, width, height)
    context.textBaseline = 'middle'
    const top = TOP + frame.pinnedHeight
    const visible = frame.places.filter(({ y, height: tall }) => y + tall > frame.scrollY && y < frame.scrollY + height - top)
    this.spans = 0
    this.perPixel = 0
    for (const { places, from, shift } of [
      { places: visible, from: top, shift: top - frame.scrollY },
      { places: frame.pinned, from: TOP, shift: TOP },
    ]) {
      context.save()
      context.beginPath()
      context.rect(0, from, width, height - from)
      context.clip()
      context.translate(0, shift)
      this.#backdrop(frame, places)
      this.#lanes(frame, places)
      this.#headers(frame, places)
      context.restore()
    }
    if (frame.pinnedHeight > 0) {
      context.fillStyle = css(frame.colours['line-strong'])
      context.fillRect(0, top - 1, width, 1)
    }
    this.#overlays(frame, visible)
    this.#ruler(frame)
    this.#miniature(frame)
  }

  #backdrop(frame: Frame, visible: readonly Place[]): void {
    const { context } = this
    context.fillStyle = css(frame.colours.bg1)
    for (const { kind, y, height } of visible) if (kind !== 'header') context.fillRect(GUTTER, y, frame.width - GUTTER, height)
  }

  #lanes(frame: Frame, visible: readonly Place[]): void {
    const { context } = this
    const { ratio, camera } = frame
    const lanes = visible.flatMap((place) => {
      const lane = place.kind === 'header' ? undefined : frame.groups[place.group]?.lanes[place.lane]
      return lane === undefined ? [] : [{ place, lane }]
    })
    const width = Math.max(1, Math.round((frame.width - GUTTER) * ratio))
    if (lanes.length === 0 || this.#atlasContext === null) return
    const image = this.#atlasContext.createImageData(width, lanes.length * 2)
    const pixels = new Uint32Array(image.data.buffer)
    const drawn = lanes.map(({ place, lane }, at) => {
      const row = this.#rowFor(at, width)
      rasterise(row, lane, camera.t0, camera.t1)
      ink(pixels, row, at * 2 * width, frame)
      this.spans += row.count
      this.perPixel = Math.max(this.perPixel, row.count / (width / ratio))
      return { place, lane, row }
    })
    if (this.#atlas.width !== width || this.#atlas.height < lanes.length * 2) {
      this.#atlas.width = width
      this.#atlas.height = lanes.length * 2
    }
    this.#atlasContext.putImageData(image, 0, 0)
    context.imageSmoothingEnabled = false
    drawn.forEach(({ place, row }, at) => {
      const body = row.isExact || place.height <= 16 ? 0 : PEAK + 1
      context.drawImage(this.#atlas, 0, at * 2, width, 1, GUTTER, place.y + body, frame.width - GUTTER, place.height - body)
      if (body > 0) context.drawImage(this.#atlas, 0, at * 2 + 1, width, 1, GUTTER, place.y, frame.width - GUTTER, PEAK)
    })
    for (const { place, lane, row } of drawn) {
      this.#pending(frame, place, row)
      if (place.kind !== 'summary' && !lane.isThin) this.#labels(frame, place, lane, row)
    }
  }

  #rowFor(at: number, width: number): Row {
    const known = this.#rows[at]
    if (known?.width === width) return known
    const row = emptyRow(width)
    this.#rows[at] = row
    return row
  }

  /** Work that is pending is hatched: neither absent nor done. */
  #pending(frame: Frame, place: Place, row: Row): void {
    let from = -1
    for (let px = 0; px <= row.width; px += 1) {
      const isPending = px < row.width && (row.pending[px] ?? 0) > 0.5
      if (isPending && from < 0) from = px
      if (!isPending && from >= 0) {
        this.context.fillStyle = this.#hatching(frame)
        this.context.fillRect(GUTTER + from / frame.ratio, place.y, (px - from) / frame.ratio, place.height)
        from = -1
      }
    }
  }

  #hatching(frame: Frame): CanvasPattern | string {
    const colour = css(frame.colours.bg0)
    if (this.#hatch === null || this.#hatchOf !== colour) {
      const tile = new OffscreenCanvas(8, 8)
      const pen = tile.getContext('2d')
      if (pen === null) return colour
      pen.strokeStyle = colour
      pen.lineWidth = 3
      for (const shift of [-8, 0, 8]) {
        pen.beginPath()
        pen.moveTo(shift - 1, 9)
        pen.lineTo(shift + 9, -1)
        pen.stroke()
      }
      this.#hatch = this.context.createPattern(tile, 'repeat')
      this.#hatchOf = colour
    }
    return this.#hatch ?? colour
  }

  #labels(frame: Frame, place: Place, lane: GroupLane, row: Row): void {
    const { context } = this
    const advances = this.advances()
    context.font = FONT
    for (const { position, x, width } of row.labels) {
      const left = Math.max(0, x / frame.ratio)
      const right = Math.min(frame.width - GUTTER, (x + width) / frame.ratio)
      const task = lane.order.task[position] ?? 0
      if (frame.isCollective(task)) {
        context.fillStyle = css(frame.colours.text1)
        context.fillRect(GUTTER + left, place.y + place.height - 2, right - left - 1, 2)
      }
      const room = right - left - 10
      if (room < 24) continue
      const text = advances.fitted(frame.labelOf(task), room)
      if (text === '') continue
      const kind = lane.classAt(position)
      const colour = frame.colours[frame.tokens[kind] ?? ''] ?? [128, 128, 128]
      const isFaint = frame.isSearching && row.match[Math.min(row.width - 1, Math.max(0, Math.ceil(x)))] !== 1
      context.fillStyle = isFaint || lane.isPendingAt(position) ? css(frame.colours.text3) : inkOn(colour)
      context.fillText(text, GUTTER + left + 5, place.y + place.height / 2 + 0.5)
    }
  }

  #headers(frame: Frame, visible: readonly Place[]): void {
    const { context, advances } = this
    for (const place of visible) {
      const group = frame.groups[place.group]
      if (group === undefined) continue
      const middle = place.y + place.height / 2 + 0.5
      context.fillStyle = css(frame.colours.bg0)
      context.fillRect(0, place.y - 3, GUTTER, place.height + 6)
      if (place.kind !== 'header') {
        const lane = group.lanes[place.lane]
        context.font = FONT
        context.fillStyle = css(frame.colours.text3)
        if (place.kind === 'pin' && lane !== undefined) {
          context.fillStyle = css(frame.colours[group.said.token])
          context.fillRect(4, place.y + 2, 3, place.height - 4)
          context.fillStyle = css(frame.colours.text1)
          context.fillText(advances().fitted(`${group.said.letter}  ${lane.title}`, GUTTER - 24), 14, middle)
        }
        if (place.kind === 'lane' && lane !== undefined) context.fillText(advances().fitted(lane.title, GUTTER - 32), 24, middle)
        continue
      }
      const { said } = group
      context.fillStyle = css(frame.colours[said.token])
      if (said.isVariant) for (let y = place.y + 2; y < place.y + place.height - 2; y += 6) context.fillRect(4, y, 3, 3)
      else context.fillRect(4, place.y + 2, 3, place.height - 4)
      context.fillStyle = css(frame.colours.bg3)
      context.beginPath()
      context.roundRect(12, place.y + 4, Math.max(18, advances().width(said.letter) + 10), 18, 4)
      context.fill()
      context.font = BOLD
      context.fillStyle = css(frame.colours.text1)
      context.textAlign = 'center'
      context.fillText(said.letter, 12 + Math.max(18, advances().width(said.letter) + 10) / 2, middle)
      context.textAlign = 'left'
      const from = 18 + Math.max(18, advances().width(said.letter) + 10)
      const room = GUTTER - from - 4
      const named = said.letter === frame.baseline ? `${said.name}  base` : said.name
      context.fillText(advances().fitted(advances().width(named) <= room ? named : said.name, room), from, middle)
      this.#steps(frame, group, place)
    }
  }

  /** The steps of a group, in its header: where each begins, its phase and number where there is room. */
  #steps(frame: Frame, group: Group, place: Place): void {
    const { context, advances } = this
    const { stepBegins, composed } = group
    const width = frame.width - GUTTER
    context.font = FONT
    if (stepBegins === null || composed === null) {
      context.fillStyle = css(frame.colours.text3)
      context.fillText(group.kind === 'source' ? 'as it was recorded' : '', GUTTER + 6, place.y + place.height / 2)
      return
    }
    const segments = group.lanes[0]?.order.segments
    const rank = segments?.groups[0]?.rank
    let before = -Infinity
    segments?.groups.forEach((one, step) => {
      if (one.rank !== rank) return
      const x0 = xAt(frame.camera, width, stepBegins[step] ?? 0)
      const x1 = x0 + (((composed.stepEnd[step] ?? 0) - (composed.stepStart[step] ?? 0)) * group.scale * width) / (frame.camera.t1 - frame.camera.t0)
      if (x1 < 0 || x0 > width || x1 - before < 2) return
      before = x1
      const left = Math.max(0, x0)
      const right = Math.min(width, x1)
      const phase = frame.phaseOf(step)
      context.fillStyle = css(frame.colours[phase === 'decode' ? 'family-attention_decode' : phase === 'prefill' ? 'family-attention_prefill' : 'family-moe_routing'], 0.22)
      context.fillRect(GUTTER + left, place.y + 5, Math.max(1, right - left - 1), place.height - 10)
      const room = right - left - 10
      if (room < 24) return
      context.fillStyle = css(frame.colours.text2)
      context.fillText(advances().fitted(frame.stepName(step), room), GUTTER + left + 5, place.y + place.height / 2 + 0.5)
    })
  }

  #overlays(frame: Frame, visible: readonly Place[]): void {
    const { context } = this
    const width = frame.width - GUTTER
    const at = (time: number) => GUTTER + xAt(frame.camera, width, time)
    context.save()
    context.beginPath()
    context.rect(GUTTER, MINIMAP, width, frame.height - MINIMAP)
    context.clip()
    if (frame.area !== null) {
      const [x0, x1] = [at(frame.area.t0), at(frame.area.t1)]
      context.fillStyle = css(frame.colours.accent, 0.14)
      context.fillRect(x0, MINIMAP, x1 - x0, frame.height)
      context.fillStyle = css(frame.colours.accent)
      context.fillRect(x0, MINIMAP, 1, frame.height)
      context.fillRect(x1 - 1, MINIMAP, 1, frame.height)
    }
    const top = TOP + frame.pinnedHeight
    for (const { places, from, shift } of [
      { places: visible, from: top, shift: top - frame.scrollY },
      { places: frame.pinned, from: TOP, shift: TOP },
    ]) {
      context.save()
      context.beginPath()
      context.rect(0, from, frame.width, frame.height - from)
      context.clip()
      context.translate(0, shift)
      for (const place of places) {
        const lane = place.kind === 'header' ? undefined : frame.groups[place.group]?.lanes[place.lane]
        if (lane === undefined) continue
        this.#marked(frame, place, lane, frame.hoveredRow, 'text1', 0.9)
        this.#marked(frame, place, lane, frame.selectedRow, 'accent', 1)
      }
      context.restore()
    }
    if (frame.liveEdge !== null) {
      context.fillStyle = css(frame.colours.good)
      context.fillRect(at(frame.liveEdge), MINIMAP, 2, frame.height)
    }
    for (const { time, name } of frame.flags) {
      context.fillStyle = css(frame.colours.warn)
      context.fillRect(at(time), MINIMAP, 1, frame.height)
      context.font = FONT
      context.fillText(name, at(time) + 4, MINIMAP + 8)
    }
    if (frame.playhead !== null) {
      const x = at(frame.playhead)
      context.fillStyle = css(frame.colours.accent)
      context.fillRect(x - 0.75, MINIMAP, 1.5, frame.height)
      context.beginPath()
      context.moveTo(x - 6, MINIMAP)
      context.lineTo(x + 6, MINIMAP)
      context.lineTo(x, MINIMAP + 9)
      context.fill()
    }
    context.restore()
  }

  /** The same launch in every group, at each one's own time. */
  #marked(frame: Frame, place: Place, lane: GroupLane, row: number | null, token: string, alpha: number): void {
    if (row === null) return
    const position = lane.order.position[row]
    if (position === undefined || position < lane.first || position >= lane.last) return
    const { context } = this
    const width = frame.width - GUTTER
    const x = GUTTER + xAt(frame.camera, width, lane.start[position] ?? 0)
    const wide = (Math.max(0, lane.duration(position)) * lane.scale * width) / (frame.camera.t1 - frame.camera.t0)
    if (x > frame.width || x + wide < GUTTER) return
    context.strokeStyle = css(frame.colours[token], alpha)
    context.lineWidth = 2
    if (wide >= 4) context.strokeRect(x + 1, place.y + 1, wide - 2, place.height - 2)
    else {
      context.fillStyle = css(frame.colours[token], alpha)
      context.fillRect(x - 0.5, place.y - 2, Math.max(2, wide), place.height + 4)
    }
  }

  #ruler(frame: Frame): void {
    const { context } = this
    const width = frame.width - GUTTER
    context.fillStyle = css(frame.colours.bg1)
    context.fillRect(0, MINIMAP, GUTTER, RULER)
    context.save()
    context.beginPath()
    context.rect(GUTTER, MINIMAP, width, frame.height - MINIMAP)
    context.clip()
    context.font = FONT
    const { times, every } = ticks(frame.camera, width)
    for (const time of times) {
      const x = GUTTER + xAt(frame.camera, width, time)
      context.fillStyle = css(frame.colours.line)
      context.fillRect(x, MINIMAP + RULER - 6, 1, 6)
      context.fillStyle = css(frame.colours.text3)
      context.fillText(frame.axisWord(time, every), x + 4, MINIMAP + RULER - 10)
    }
    context.fillStyle = css(frame.colours.line)
    context.fillRect(GUTTER, TOP - 1, width, 1)
    context.restore()
    context.fillStyle = css(frame.colours.line)
    context.fillRect(GUTTER - 1, 0, 1, frame.height)
    context.fillStyle = css(frame.colours.text2)
    context.font = FONT
    context.fillText(`${timeWithUnit(ms((frame.camera.t1 - frame.camera.t0) / 1e6))} in view`, 12, MINIMAP + RULER / 2)
  }

  /** Everything at once, of the baseline; what is in view stands out. */
  #miniature(frame: Frame): void {
    const { context } = this
    const width = frame.width - GUTTER
    const group = frame.groups.find(({ said }) => said.letter === frame.baseline) ?? frame.groups[0]
    const lane = group?.lanes.find(({ isThin }) => !isThin)
    context.fillStyle = css(frame.colours.bg0)
    context.fillRect(0, 0, frame.width, MINIMAP)
    context.font = FONT
    context.fillStyle = css(frame.colours.text3)
    context.fillText(group === undefined ? '' : `all of ${group.said.letter}`, 12, MINIMAP / 2)
    if (lane === undefined) return
    const key = [lane, width, frame.ratio, frame.end, frame.isDark, frame.isSearching, frame.tokens].map(identity).join()
    if (this.#minimapOf !== key) {
      this.#minimapOf = key
      const wide = Math.max(1, Math.round(width * frame.ratio))
      this.#minimap.width = wide
      this.#minimap.height = 2
      const pen = this.#minimap.getContext('2d')
      const row = emptyRow(wide)
      rasterise(row, lane, 0, Math.max(1, frame.end))
      const image = pen?.createImageData(wide, 2)
      if (pen && image) {
        ink(new Uint32Array(image.data.buffer), row, 0, frame)
        pen.putImageData(image, 0, 0)
      }
    }
    context.imageSmoothingEnabled = false
    context.drawImage(this.#minimap, 0, 0, this.#minimap.width, 1, GUTTER, 8, width, MINIMAP - 16)
    context.drawImage(this.#minimap, 0, 1, this.#minimap.width, 1, GUTTER, 5, width, 2)
    const x0 = GUTTER + Math.max(0, (frame.camera.t0 / frame.end) * width)
    const x1 = GUTTER + Math.min(width, (frame.camera.t1 / frame.end) * width)
    context.fillStyle = css(frame.colours.bg0, 0.62)
    context.fillRect(GUTTER, 4, x0 - GUTTER, MINIMAP - 8)
    context.fillRect(x1, 4, GUTTER + width - x1, MINIMAP - 8)
    context.strokeStyle = css(frame.colours.text2)
    context.lineWidth = 1
    context.strokeRect(x0 + 0.5, 3.5, Math.max(3, x1 - x0 - 1), MINIMAP - 7)
    context.fillStyle = css(frame.colours.line)
    context.fillRect(0, MINIMAP - 1, frame.width, 1)
  }
}

/** A lane's row as pixels: the body at `offset`, its peaks one row below. */
function ink(pixels: Uint32Array, row: Row, offset: number, frame: Frame): void {
  const { width } = row
  const colours = Array.from({ length: CLASSES }, (_, kind) => packed(frame.colours[frame.tokens[kind] ?? ''] ?? [128, 128, 128]))
  let most = 1
  for (let px = 0; px < width; px += 1) most = Math.max(most, row.longest[px] ?? 0)
  const scale = 1 / Math.log2(1 + most)
  for (let px = 0; px < width; px += 1) {
    const kind = row.kind[px] ?? CLASSES
    if (kind < CLASSES) {
      // Something that runs for a thousandth of a pixel is still seen.
      let alpha = Math.max(0.35, row.share[px] ?? 0)
      if ((row.edge[px] ?? 0) === 1) alpha *= 0.4
      if (frame.isSearching && row.match[px] !== 1) alpha *= FAINT
      pixels[offset + px] = (colours[kind] ?? 0) | (Math.round(alpha * 255) << 24)
    }
    const longest = row.longest[px] ?? 0
    if (longest > 0 && !row.isExact) {
      const alpha = (Math.log2(1 + longest) * scale) ** 4 * (frame.isSearching && row.match[px] !== 1 ? FAINT : 1)
      pixels[offset + width + px] = (colours[row.longestKind[px] ?? 0] ?? 0) | (Math.round(alpha * 255) << 24)
    }
  }
}

const packed = ([red, green, blue]: Rgb): number => red | (green << 8) | (blue << 16)

const css = (colour: Rgb | undefined, alpha = 1): string => {
  const [red, green, blue] = colour ?? [128, 128, 128]
  return alpha === 1 ? `rgb(${red},${green},${blue})` : `rgba(${red},${green},${blue},${alpha})`
}

/** Whichever of nearly black and white reads better on a colour. */
function inkOn([red, green, blue]: Rgb): string {
  const linear = [red, green, blue].map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4))
  const light = 0.2126 * (linear[0] ?? 0) + 0.7152 * (linear[1] ?? 0) + 0.0722 * (linear[2] ?? 0)
  return (light + 0.05) / (0.0044 + 0.05) >= 1.05 / (light + 0.05) ? '#0b0e12' : '#ffffff'
}

const identities = new WeakMap<object, number>()
let identityCount = 0

/** The same number for the same object: a key made of things that are compared by identity. */
function identity(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value)
  let known = identities.get(value)
  if (known === undefined) {
    identityCount += 1
    known = identityCount
    identities.set(value, known)
  }
  return `#${known}`
}
