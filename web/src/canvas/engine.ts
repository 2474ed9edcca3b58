import { areaOn, areaSaid, hoverSaid, launchSaid, stepWords, type Described } from './describe'
import { between, fitted, panned, timeAt, xAt, zoomedAt, type Camera } from './camera'
import { Painter, type Colours } from './draw'
import { blankGroup, configGroups, mark, paletteOf, sourceGroup, type Group, type GroupLane, type Palette, type Shape, type SourceOrders, type Sources } from './groups'
import { Advances, shortKernel } from './labels'
import { GrowingLaunches, type Layout } from './launches'
import { fetchLaunches, fetchLayout, fetchResults, PAGE_LAUNCHES } from './loader'
import { groupAt, hostOrder, measuredOrder, NONE, stepOrder } from './order'
import { COLOURS, type Command, type ConfigSaid, type FromTimeline, type ToTimeline, type TwinRow, type View } from './protocol'
import { firstAfter } from './raster'
import type { ResultColumns } from './results'
import { GUTTER, pinnedScene, placeAt, regionAt, scene, TOP, type Place } from './scene'
import { digits, timeWithUnit } from '../lib/format'
import { ms } from '../lib/units'

const ANIMATION_MS = 180
const REFRESH_EVERY_MS = 500
const VIEW_EVERY_MS = 250
const CLOCK_EVERY_MS = 100
const TWIN_ROWS_MAX = 2_000
const FRAMES_KEPT = 1_200
const DRAG_PX = 4
const SNAP_PX = 6
/** Following keeps the live edge here. */
const EDGE_SHARE = 0.85

interface Drag {
  readonly kind: 'pan' | 'area' | 'minimap' | 'gutter' | 'playhead'
  readonly x: number
  readonly y: number
  readonly camera: Camera
  readonly scrollY: number
  hasMoved: boolean
}

/** A launch that stays where it is on the screen while lanes change. */
interface Anchor {
  readonly row: number
  readonly letter: string
  readonly x: number
}

/** The timeline behind the canvas: what is loaded, where one looks, what is chosen; draws when something changed. */
export class Timeline {
  readonly #painter: Painter
  #advances: Advances
  #width = 1
  #height = 1
  #ratio = 1
  #colours: Colours = {}
  #isDark = true
  #isMotionReduced = false

  // --- what is known
  readonly #launches = new GrowingLaunches()
  #layout: Layout | null = null
  #total = 0
  readonly #results = new Map<string, ResultColumns>()
  #hidden: readonly string[] | null = null
  #sources: Sources | null = null
  #sourceOrders: SourceOrders | null = null
  /** Grows with every change of the lanes: what was begun for an older one is given up. */
  #epoch = 0
  #palette: Palette = { tokens: [], familyOf: new Uint8Array(0), families: [] }
  #groups: readonly Group[] = []
  /** End of everything there is to look at, the recording with its idle time included. */
  #end = 1
  /** End of the simulated lanes: what is shown whole, followed, and in the minimap. */
  #simulatedEnd = 1
  #error = ''
  readonly #labels = new Map<number, string>()
  readonly #phases = new Map<string, string>()
  #isWaiting = false

  // --- where one looks
  #camera: Camera = { t0: 0, t1: 1 }
  #isFit = true
  #isFollowing = false
  #animation: { readonly from: Camera; readonly to: Camera; readonly began: number } | null = null
  #trail: Camera[] = []
  #scrollY = 0
  #places: readonly Place[] = []
  #sceneHeight = 0
  #pinned: readonly Place[] = []
  #pinnedHeight = 0
  /** A step to go to as soon as it is known. */
  #wantedStep: number | null = null
  readonly #collapsed = new Set<string>()
  #solo = ''

  // --- what is chosen
  #view: View
  #selected: { readonly row: number; readonly letter: string } | null = null
  #hovered: { readonly row: number; readonly letter: string } | null = null
  #area: { readonly t0: number; readonly t1: number } | null = null
  #drag: Drag | null = null
  #pointer: { readonly x: number; readonly y: number } | null = null
  #isMatch: Uint8Array | null = null
  #hits = 0
  #isTwin = false

  // --- clocks
  #isPlaying = false
  #speed = 0.001
  #clockSaid = 0
  #viewTimer: ReturnType<typeof setTimeout> | undefined
  #refreshTimer: ReturnType<typeof setTimeout> | undefined
  readonly #stale = new Set<string>()

  // --- frames
  #isDirty = true
  #frame = 0
  #lastFrame = 0
  #isMeasuring = false
  readonly #drawMs: number[] = []
  readonly #frameMs: number[] = []
  #loadedAt: number | null = null
  #firstPaintMs: number | null = null
  #allPaintMs: number | null = null

  constructor(
    readonly start: Extract<ToTimeline, { readonly op: 'start' }>,
    readonly say: (said: FromTimeline) => void,
  ) {
    const context = start.canvas.getContext('2d', { alpha: false })
    if (context === null) throw new Error('this browser has no 2D canvas in workers')
    this.#advances = measured(context)
    this.#painter = new Painter(context, () => this.#advances)
    const view = start.view
    this.#view = {
      t0: view.t0 ?? null,
      t1: view.t1 ?? null,
      playhead: view.playhead ?? null,
      selected: view.selected ?? null,
      area: view.area ?? null,
      align: view.align ?? 'time',
      colour: view.colour ?? 'family',
      query: view.query ?? '',
      baseline: view.baseline ?? start.configs[0]?.letter ?? 'A',
      flags: view.flags ?? [],
      pins: view.pins ?? [],
      isLooping: view.isLooping ?? false,
    }
    if (this.#view.t0 !== null && this.#view.t1 !== null && this.#view.t1 > this.#view.t0) {
      this.#camera = { t0: this.#view.t0, t1: this.#view.t1 }
      this.#isFit = false
    }
    this.#selected = selectionOf(this.#view.selected)
    this.#area = areaOf(this.#view.area)
    void this.#load()
    this.#wake()
  }

  /** Fonts came: names have other widths. */
  fontsChanged(context: OffscreenCanvasRenderingContext2D): void {
    this.#advances = measured(context)
    this.#touch()
  }

  hear(said: ToTimeline): void {
    switch (said.op) {
      case 'size':
        this.#width = Math.max(1, said.width)
        this.#height = Math.max(1, said.height)
        this.#ratio = said.ratio
        this.start.canvas.width = Math.round(said.width * said.ratio)
        this.start.canvas.height = Math.round(said.height * said.ratio)
        this.#arrange()
        // Resizing empties a canvas: draw at once, or it flashes.
        this.#draw()
        return
      case 'theme':
        this.#colours = said.colours
        this.#isDark = said.isDark
        { this.#touch(); return; }
      case 'pointer':
        { this.#point(said); return; }
      case 'wheel':
        { this.#wheel(said); return; }
      case 'command':
        { this.#command(said.command); return; }
      case 'view':
        { this.#take(said.view); return; }
      case 'solo':
        this.#solo = this.#solo === said.letter ? '' : said.letter
        { this.#arrange(); return; }
      case 'step':
        this.#wantedStep = said.step
        { this.#goToWantedStep(); return; }
      case 'results':
        this.#stale.add(said.id)
        { this.#refreshSoon(); return; }
      case 'results-hidden':
        this.#hidden = said.known
        { this.#compose(); return; }
      case 'twin':
        this.#isTwin = said.isOn
        { this.#sayTwin(); return; }
      case 'motion':
        this.#isMotionReduced = said.isReduced
        return
      case 'perf':
        this.#isMeasuring = said.isOn
        this.say({ op: 'perf', perf: { drawMs: this.#drawMs.splice(0), frameMs: this.#frameMs.splice(0), firstPaintMs: this.#firstPaintMs, allPaintMs: this.#allPaintMs, spans: this.#painter.spans } })
        return
      case 'start':
        return
    }
  }

  // --- loading --------------------------------------------------------------------------------------------------------

  async #load(): Promise<void> {
    try {
      const layout = await fetchLayout(this.start.traceId)
      this.#know(layout)
      const results = this.start.configs.map((config) => this.#loadResults(config))
      await this.#loadLaunches()
      await Promise.all(results)
      this.#loadedAt = performance.now()
      this.#reorder(true)
      if (!layout.is_complete) this.#refreshSoon()
    } catch (error) {
      this.#fail(error)
    }
  }

  async #loadLaunches(): Promise<void> {
    // Rows of several ranks may come between those that are known, so those are read anew as a whole.
    if ((this.#layout?.ranks.length ?? 1) > 1 && this.#launches.count < this.#total) this.#launches.clear()
    while (this.#launches.count < this.#total) {
      const { page, total } = await fetchLaunches(this.start.traceId, this.#launches.count)
      this.#launches.append(page)
      this.#total = Math.max(this.#total, total)
      // The first page is shown at once; the last one is by who asked for all.
      if (this.#sources === null && this.#launches.count < this.#total) this.#reorder()
      this.#sayStatus()
      if (page.count === 0) return
      if (page.count < PAGE_LAUNCHES && this.#launches.count >= this.#total) return
    }
  }

  async #loadResults({ id, runId, configId }: ConfigSaid): Promise<void> {
    this.#results.set(id, await fetchResults(runId, configId))
  }

  #know(layout: Layout): void {
    this.#layout = layout
    this.#total = layout.launches
    this.#launches.reserve(layout.launches)
    this.#phases.clear()
    for (const { rank, step, phase } of layout.steps) this.#phases.set(`${rank}.${step}`, phase)
    this.#palette = paletteOf(layout.tasks, this.#view.colour)
    this.#labels.clear()
    this.#search()
  }

  /** What changed since: more launches while the trace grows, more results while it is simulated. */
  #refreshSoon(): void {
    this.#refreshTimer ??= setTimeout(() => {
      this.#refreshTimer = undefined
      void this.#refresh()
    }, REFRESH_EVERY_MS)
  }

  async #refresh(): Promise<void> {
    if (this.#sources === null || this.#isWaiting) { this.#refreshSoon(); return; }
    this.#isWaiting = true
    try {
      const isGrowing = this.#layout?.is_complete === false
      const before = this.#launches.count
      if (isGrowing) {
        this.#know(await fetchLayout(this.start.traceId))
        await this.#loadLaunches()
      }
      const stale = [...this.#stale]
      this.#stale.clear()
      for (const config of this.start.configs) if (stale.includes(config.id)) await this.#loadResults(config)
      this.#error = ''
      if (this.#launches.count !== before) this.#reorder()
      else if (stale.length > 0 || isGrowing) this.#compose()
      if (this.#layout?.is_complete === false || this.#stale.size > 0) this.#refreshSoon()
    } catch (error) {
      this.#fail(error)
      this.#refreshSoon()
    } finally {
      this.#isWaiting = false
    }
  }

  #fail(error: unknown): void {
    this.#error = error instanceof Error ? error.message : String(error)
    this.#sayStatus()
  }

  /** isStaged: one config after the other, each shown as soon as it is ready. */
  #reorder(isStaged = false): void {
    const layout = this.#layout
    if (layout === null) return
    const launches = this.#launches.columns()
    this.#sources = { launches, order: stepOrder(launches), tasks: layout.tasks, gaps: layout.gaps, streams: layout.streams, results: this.#results }
    this.#sourceOrders = null
    if (isStaged && this.#view.align === 'time' && this.#hidden === null) this.#composeStaged(this.#sources)
    else this.#compose()
  }

  get #shape(): Shape {
    const { align, colour, baseline } = this.#view
    return { configs: this.start.configs, source: this.#sourceSaid(), align, colour, baseline }
  }

  /** Lanes anew; what one looks at stays where it is on the screen. */
  #compose(): void {
    if (this.#sources === null) return
    this.#epoch += 1
    const anchor = this.#anchor()
    const results = this.#hidden === null ? this.#results : new Map([...this.#results].filter(([id]) => this.#hidden?.includes(id)))
    const sources = { ...this.#sources, results }
    this.#groups = [...configGroups(sources, this.#shape, this.#palette), ...this.#recorded(sources)]
    this.#settle(anchor)
  }

  #composeStaged(sources: Sources): void {
    this.#epoch += 1
    const epoch = this.#epoch
    const anchor = this.#anchor()
    const { configs } = this.start
    // The baseline first, which is what the minimap shows.
    const queue = [...configs].sort((a, b) => Number(b.letter === this.#view.baseline) - Number(a.letter === this.#view.baseline))
    this.#groups = configs.map((said) => blankGroup(said, sources.order, sources.streams))
    const turn = () => {
      if (epoch !== this.#epoch) return // something changed meanwhile, and was composed as a whole
      const next = queue.shift()
      if (next === undefined) this.#groups = [...this.#groups, ...this.#recorded(sources)]
      else {
        const [made] = configGroups(sources, { ...this.#shape, configs: [next] }, this.#palette)
        if (made !== undefined) this.#groups = this.#groups.map((group) => (group.said.id === next.id ? made : group))
      }
      this.#settle(anchor)
      this.#draw()
      if (next === undefined) this.#allPaintMs ??= this.#loadedAt === null ? null : performance.now() - this.#loadedAt
      else setTimeout(turn)
    }
    turn()
  }

  #recorded(sources: Sources): readonly Group[] {
    this.#sourceOrders ??= { measured: measuredOrder(sources.launches), host: hostOrder(sources.launches) }
    const group = sourceGroup(sources, this.#sourceOrders, this.#shape, this.#palette)
    return group === null ? [] : [group]
  }

  #settle(anchor: Anchor | null): void {
    this.#end = Math.max(1, ...this.#groups.map(({ end }) => end))
    const simulated = Math.max(0, ...this.#groups.map(({ kind, end }) => (kind === 'config' ? end : 0)))
    this.#simulatedEnd = simulated > 0 ? simulated : this.#end
    this.#hits = mark(this.#groups, this.#isMatch)
    if (this.#isFit) this.#camera = fitted(0, this.#simulatedEnd)
    else if (anchor !== null) this.#hold(anchor)
    this.#arrange()
    this.#goToWantedStep()
    this.#saySelected()
    this.#sayStatus()
    this.#sayTwin()
  }

  #sourceSaid(): ConfigSaid {
    return { id: 'source', runId: '', configId: '', letter: 'src', name: this.start.source, label: '', isVariant: false, token: 'text3' }
  }

  /** A launch and where it is on the screen: the selected one, else the first in view. */
  #anchor(): Anchor | null {
    const chosen = this.#selected ?? this.#firstInView()
    const at = chosen === null ? null : this.#axisOf(chosen.letter, chosen.row)
    return chosen === null || at === null ? null : { ...chosen, x: xAt(this.#camera, this.#axisWidth, at) }
  }

  #hold(anchor: Anchor): void {
    const at = this.#axisOf(anchor.letter, anchor.row)
    if (at === null) return
    const shift = at - timeAt(this.#camera, this.#axisWidth, anchor.x)
    this.#camera = { t0: this.#camera.t0 + shift, t1: this.#camera.t1 + shift }
  }

  #firstInView(): { readonly row: number; readonly letter: string } | null {
    const group = this.#baseGroup()
    const lane = group?.lanes[0]
    if (group === undefined || lane === undefined) return null
    const position = firstAfter(lane.start, lane.first, lane.last, this.#camera.t0)
    const row = lane.order.row[Math.min(position, lane.last - 1)]
    return row === undefined ? null : { row, letter: group.said.letter }
  }

  #axisOf(letter: string, row: number): number | null {
    for (const lane of this.#groups.find(({ said }) => said.letter === letter)?.lanes ?? []) {
      const position = lane.order.position[row] ?? NONE
      if (position >= lane.first && position < lane.last) return lane.start[position] ?? null
    }
    return null
  }

  #arrange(): void {
    const pinned = pinnedScene(this.#pins())
    this.#pinned = pinned.places
    this.#pinnedHeight = pinned.height
    const { places, height } = scene(
      this.#groups.map((group) => ({
        isCollapsed: this.#collapsed.has(group.said.letter) || (this.#solo !== '' && this.#solo !== group.said.letter),
        lanes: group.lanes,
      })),
      this.#height - TOP - this.#pinnedHeight - 8,
    )
    this.#places = places
    this.#sceneHeight = height
    this.#scrollY = Math.min(this.#scrollY, this.#scrollMax)
    this.#touch()
  }

  get #scrollMax(): number {
    return Math.max(0, this.#sceneHeight - (this.#height - TOP - this.#pinnedHeight))
  }

  /** The pinned lanes that are here, in the order they were pinned. */
  #pins(): readonly { readonly group: number; readonly lane: number }[] {
    return this.#view.pins.flatMap((pin) => {
      const [letter, lane] = pin.split('.')
      const group = this.#groups.findIndex(({ said }) => said.letter === letter)
      return this.#groups[group]?.lanes[Number(lane)] === undefined ? [] : [{ group, lane: Number(lane) }]
    })
  }

  #placeUnder(y: number): Place | undefined {
    const from = TOP + this.#pinnedHeight
    return y < from ? placeAt(this.#pinned, y - TOP) : placeAt(this.#places, y - from + this.#scrollY)
  }

  /** The lane under the pointer, else that of the selection: pinned, or no more. */
  #pin(): void {
    const place = this.#pointer === null ? undefined : this.#placeUnder(this.#pointer.y)
    const under = place === undefined || place.kind === 'header' ? undefined : `${this.#groups[place.group]?.said.letter ?? ''}.${place.lane}`
    const found = this.#selected === null ? null : this.#laneOf(this.#selected.letter, this.#selected.row)
    const pin = under ?? (found === null ? undefined : `${this.#selected?.letter ?? ''}.${found.index}`)
    if (pin === undefined) return
    const { pins } = this.#view
    this.#view = { ...this.#view, pins: pins.includes(pin) ? pins.filter((one) => one !== pin) : [...pins, pin] }
    this.#arrange()
    this.#sayView(false)
  }

  #goToWantedStep(): void {
    const wanted = this.#wantedStep
    const segments = this.#baseGroup()?.lanes[0]?.order.segments
    const target = wanted === null ? undefined : this.#steps().find(({ group }) => segments?.groups[group]?.step === wanted)
    if (target === undefined) return
    this.#wantedStep = null
    this.#goTo(fitted(target.t0, target.t1), true)
  }

  get #axisWidth(): number {
    return Math.max(1, this.#width - GUTTER)
  }

  #baseGroup(): Group | undefined {
    return this.#groups.find(({ said }) => said.letter === this.#view.baseline) ?? this.#groups[0]
  }

  get #described(): Described {
    return {
      groups: this.#groups,
      launches: this.#sources?.launches ?? null,
      tasks: this.#layout?.tasks ?? [],
      streams: this.#layout?.streams ?? [],
      phases: this.#phases,
      baseline: this.#baseGroup()?.said.letter ?? '',
      families: this.#palette.families,
      familyOf: this.#palette.familyOf,
    }
  }

  // --- looking ----------------------------------------------------------------------------------------------------------

  #goTo(to: Camera, isJump: boolean): void {
    this.#isFollowing = false
    if (isJump) {
      this.#trail = [...this.#trail.slice(-31), this.#camera]
      this.#animation = this.#isMotionReduced ? null : { from: this.#camera, to, began: performance.now() }
      if (this.#animation === null) this.#camera = to
    } else {
      this.#animation = null
      this.#camera = to
    }
    this.#isFit = false
    this.#touch()
    this.#sayView(isJump)
  }

  #wheel({ x, y, dx, dy, isShift }: Extract<ToTimeline, { readonly op: 'wheel' }>): void {
    const region = regionAt(x, y)
    if (region === 'gutter') {
      this.#scrollY = Math.max(0, Math.min(this.#scrollMax, this.#scrollY + dy))
      this.#touch(); return;
    }
    if (isShift || Math.abs(dx) > Math.abs(dy)) {
      this.#goTo(panned(this.#camera, this.#axisWidth, isShift && dx === 0 ? dy : dx, this.#end), false); return;
    }
    this.#goTo(zoomedAt(this.#camera, this.#axisWidth, x - GUTTER, Math.exp(Math.max(-600, Math.min(600, dy)) * 0.0022), this.#end), false)
  }

  #point({ kind, x, y, isShift, button }: Extract<ToTimeline, { readonly op: 'pointer' }>): void {
    const region = regionAt(x, y)
    if (kind === 'leave') {
      this.#pointer = null
      this.#hover(null)
      return
    }
    this.#pointer = { x, y }
    if (kind === 'down' && button === 0) {
      const isAtHead = this.#view.playhead !== null && Math.abs(xAt(this.#camera, this.#axisWidth, this.#view.playhead) + GUTTER - x) < 6
      const what = region === 'minimap' ? 'minimap' : region === 'gutter' ? 'gutter' : isAtHead && region === 'ruler' ? 'playhead' : region === 'ruler' || isShift ? 'area' : 'pan'
      this.#drag = { kind: what, x, y, camera: this.#camera, scrollY: this.#scrollY, hasMoved: false }
      this.#animation = null
      if (what === 'minimap') this.#dragMinimap(x)
      return
    }
    if (kind === 'up') {
      const drag = this.#drag
      this.#drag = null
      this.#cursor(region)
      if (drag === null) return
      if (!drag.hasMoved) this.#click(x, y, drag.kind)
      else if (drag.kind === 'area') this.#saySelected()
      this.#sayView(drag.kind === 'area')
      return
    }
    if (kind === 'double') { this.#double(x, y); return; }
    const drag = this.#drag
    if (drag === null) {
      this.#cursor(region)
      this.#hover(region === 'lanes' ? { x, y } : null)
      return
    }
    if (!drag.hasMoved && Math.hypot(x - drag.x, y - drag.y) < DRAG_PX) return
    drag.hasMoved = true
    this.#hover(null)
    switch (drag.kind) {
      case 'pan':
        this.#scrollY = Math.max(0, Math.min(this.#scrollMax, drag.scrollY - (y - drag.y)))
        this.say({ op: 'cursor', cursor: 'grabbing' })
        { this.#goTo(panned(drag.camera, this.#axisWidth, drag.x - x, this.#end), false); return; }
      case 'gutter':
        this.#scrollY = Math.max(0, Math.min(this.#scrollMax, drag.scrollY - (y - drag.y)))
        { this.#touch(); return; }
      case 'minimap':
        { this.#dragMinimap(x); return; }
      case 'playhead':
        { this.#seek(timeAt(this.#camera, this.#axisWidth, x - GUTTER)); return; }
      case 'area': {
        const times = [drag.x, x].map((one) => this.#snapped(one, y)).sort((a, b) => a - b)
        this.#area = { t0: times[0] ?? 0, t1: times[1] ?? 0 }
        this.#touch(); return;
      }
    }
  }

  #cursor(region: string): void {
    this.say({ op: 'cursor', cursor: region === 'ruler' ? 'col-resize' : region === 'minimap' ? 'ew-resize' : region === 'gutter' ? 'ns-resize' : 'default' })
  }

  #dragMinimap(x: number): void {
    const span = this.#camera.t1 - this.#camera.t0
    const middle = ((x - GUTTER) / this.#axisWidth) * this.#simulatedEnd
    this.#goTo({ t0: middle - span / 2, t1: middle + span / 2 }, false)
  }

  #click(x: number, y: number, kind: Drag['kind']): void {
    if (kind === 'gutter') {
      const place = this.#placeUnder(y)
      const letter = place === undefined ? undefined : this.#groups[place.group]?.said.letter
      if (place?.kind === 'header' && letter !== undefined) {
        if (!this.#collapsed.delete(letter)) this.#collapsed.add(letter)
        this.#arrange()
      }
      return
    }
    if (kind === 'area' || kind === 'playhead') { this.#seek(timeAt(this.#camera, this.#axisWidth, x - GUTTER)); return; }
    if (kind !== 'pan') return
    const hit = this.#hit(x, y)
    this.#select(hit === null ? null : { row: hit.row, letter: hit.letter })
    if (hit === null) this.#area = null
    this.#saySelected()
  }

  #double(x: number, y: number): void {
    const hit = this.#hit(x, y)
    if (hit !== null) this.#goTo(this.#around(hit.lane, hit.position), true)
  }

  #around(lane: GroupLane, position: number): Camera {
    const from = lane.start[position] ?? 0
    const wide = Math.max(lane.duration(position) * lane.scale, 200)
    return fitted(from - wide, from + wide * 2, 0)
  }

  /** The launch under a point: at a coarse zoom the longest of those that share its pixel. */
  #hit(x: number, y: number): { readonly lane: GroupLane; readonly position: number; readonly row: number; readonly letter: string; readonly count: number; readonly busy: number } | null {
    const place = this.#placeUnder(y)
    const group = place === undefined ? undefined : this.#groups[place.group]
    const lane = place === undefined || place.kind === 'header' ? undefined : group?.lanes[place.lane]
    if (group === undefined || lane === undefined) return null
    const time = timeAt(this.#camera, this.#axisWidth, x - GUTTER)
    const half = (this.#camera.t1 - this.#camera.t0) / this.#axisWidth / 2
    const from = Math.max(lane.first, firstAfter(lane.start, lane.first, lane.last, time - half) - 1)
    const to = Math.max(from + 1, firstAfter(lane.start, lane.first, lane.last, time + half))
    let [best, count, busy] = [-1, 0, 0]
    for (let position = from; position < Math.min(to, lane.last); position += 1) {
      const begin = lane.start[position] ?? 0
      const duration = Math.max(0, lane.duration(position))
      // A launch of a pixel or less may be missed by a hair; a wide one is hit only inside.
      if (begin + duration * lane.scale < time - 2 * half || begin > time + 2 * half) continue
      count += 1
      busy += duration
      if (best < 0 || duration > lane.duration(best)) best = position
    }
    return best < 0 ? null : { lane, position: best, row: lane.order.row[best] ?? 0, letter: group.said.letter, count, busy }
  }

  /** Near the edge of a launch of the lane below the pointer: exactly there. */
  #snapped(x: number, y: number): number {
    const time = timeAt(this.#camera, this.#axisWidth, x - GUTTER)
    const place = this.#placeUnder(y)
    const group = place === undefined ? this.#baseGroup() : this.#groups[place.group]
    const lane = group?.lanes[Math.max(0, place?.lane ?? 0)] ?? group?.lanes[0]
    if (lane === undefined) return time
    const near = (SNAP_PX * (this.#camera.t1 - this.#camera.t0)) / this.#axisWidth
    const position = Math.min(lane.last - 1, Math.max(lane.first, firstAfter(lane.start, lane.first, lane.last, time) - 1))
    const begin = lane.start[position] ?? 0
    const edges = [begin, begin + Math.max(0, lane.duration(position)) * lane.scale, lane.start[Math.min(lane.last - 1, position + 1)] ?? begin]
    return edges.reduce((best, edge) => (Math.abs(edge - time) < Math.min(near, best === time ? Infinity : Math.abs(best - time)) ? edge : best), time)
  }

  #hover(at: { readonly x: number; readonly y: number } | null): void {
    const hit = at === null ? null : this.#hit(at.x, at.y)
    if (hit?.row !== this.#hovered?.row || hit?.letter !== this.#hovered?.letter) {
      this.#hovered = hit === null ? null : { row: hit.row, letter: hit.letter }
      this.#touch()
    }
    this.say({ op: 'hover', hover: hit === null || at === null ? null : hoverSaid(this.#described, hit, at) })
  }

  // --- choosing ----------------------------------------------------------------------------------------------------------

  #select(selected: { readonly row: number; readonly letter: string } | null): void {
    this.#selected = selected
    this.#touch()
    this.#sayView(false)
  }

  #selectAnd(row: number, letter: string, isShown: boolean): void {
    this.#select({ row, letter })
    this.#saySelected()
    const at = this.#axisOf(letter, row)
    if (at === null) return
    if (isShown || at < this.#camera.t0 || at > this.#camera.t1) {
      const span = this.#camera.t1 - this.#camera.t0
      this.#goTo({ t0: at - span / 2, t1: at + span / 2 }, true)
    }
  }

  #laneOf(letter: string, row: number): { readonly lane: GroupLane; readonly position: number; readonly index: number } | null {
    const lanes = this.#groups.find(({ said }) => said.letter === letter)?.lanes ?? []
    for (const [index, lane] of lanes.entries()) {
      const position = lane.order.position[row] ?? NONE
      if (position >= lane.first && position < lane.last) return { lane, position, index }
    }
    return null
  }

  #command(command: Command): void {
    const middle = this.#pointer === null ? this.#axisWidth / 2 : Math.max(0, this.#pointer.x - GUTTER)
    switch (command) {
      case 'zoom-in':
      case 'zoom-out':
        { this.#goTo(zoomedAt(this.#camera, this.#axisWidth, middle, command === 'zoom-in' ? 0.7 : 1 / 0.7, this.#end), false); return; }
      case 'left':
      case 'right':
        { this.#goTo(panned(this.#camera, this.#axisWidth, (command === 'left' ? -0.15 : 0.15) * this.#axisWidth, this.#end), false); return; }
      case 'page-left':
      case 'page-right':
        { this.#goTo(panned(this.#camera, this.#axisWidth, (command === 'page-left' ? -0.9 : 0.9) * this.#axisWidth, this.#end), false); return; }
      case 'previous':
      case 'next':
        { this.#neighbour(command === 'next' ? 1 : -1); return; }
      case 'lane-above':
      case 'lane-below':
        { this.#otherLane(command === 'lane-below' ? 1 : -1); return; }
      case 'focus':
        { this.#focus(); return; }
      case 'fit-all': {
        // Again: with the recording, whose idle time may be many times as long.
        const isWider = this.#isFit && this.#end > this.#simulatedEnd
        this.#goTo(fitted(0, isWider ? this.#end : this.#simulatedEnd), true)
        this.#isFit = !isWider
        return
      }
      case 'back': {
        const before = this.#trail.pop()
        if (before === undefined) return
        this.#goTo(before, true)
        this.#trail.pop() // going back is no step of the trail
        return
      }
      case 'previous-step':
      case 'next-step':
        { this.#goToStep(command === 'next-step' ? 1 : -1); return; }
      case 'selection-to-area': {
        const found = this.#selected === null ? null : this.#laneOf(this.#selected.letter, this.#selected.row)
        if (found === null) return
        const from = found.lane.start[found.position] ?? 0
        this.#setArea({ t0: from, t1: from + Math.max(1, found.lane.duration(found.position) * found.lane.scale) }); return;
      }
      case 'loop':
        { this.#loop(); return; }
      case 'flag': {
        const time = this.#view.playhead ?? (this.#pointer === null ? (this.#camera.t0 + this.#camera.t1) / 2 : timeAt(this.#camera, this.#axisWidth, this.#pointer.x - GUTTER))
        const flags = [...this.#view.flags, { time: Math.round(time), name: String(this.#view.flags.length + 1) }]
        this.#view = { ...this.#view, flags }
        this.#touch()
        this.#sayView(false); return;
      }
      case 'play':
        this.#isPlaying = !this.#isPlaying
        if (this.#isPlaying && (this.#view.playhead === null || this.#view.playhead >= this.#end)) this.#seek(Math.max(0, this.#area?.t0 ?? this.#camera.t0))
        this.#touch()
        { this.#sayClock(true); return; }
      case 'slower':
      case 'faster':
        this.#speed = Math.min(1000, Math.max(1e-6, this.#speed * (command === 'faster' ? 10 : 0.1) ** 0.5))
        { this.#sayClock(true); return; }
      case 'follow':
        this.#isFollowing = !this.#isFollowing
        this.#isFit = false
        this.#touch()
        { this.#sayStatus(); return; }
      case 'next-hit':
      case 'previous-hit':
        { this.#goToHit(command === 'next-hit' ? 1 : -1); return; }
      case 'collapse': {
        const letter = this.#selected?.letter ?? this.#view.baseline
        if (!this.#collapsed.delete(letter)) this.#collapsed.add(letter)
        this.#arrange(); return;
      }
      case 'pin':
        { this.#pin(); return; }
      case 'next-colour':
        { this.#take({ colour: COLOURS[(COLOURS.indexOf(this.#view.colour) + 1) % COLOURS.length] ?? 'family' }); return; }
      case 'clear':
        this.#area = null
        this.#select(null)
        { this.#saySelected(); return; }
    }
  }

  #neighbour(way: 1 | -1): void {
    const from = this.#selected ?? this.#firstInView()
    const found = from === null ? null : this.#laneOf(from.letter, from.row)
    if (from === null || found === null) return
    const position = this.#selected === null ? found.position : found.position + way
    const row = position < found.lane.first || position >= found.lane.last ? undefined : found.lane.order.row[position]
    if (row !== undefined) this.#selectAnd(row, from.letter, false)
  }

  /** The launch that runs at the same moment in the next lane up or down, in the next group too. */
  #otherLane(way: 1 | -1): void {
    const from = this.#selected ?? this.#firstInView()
    const found = from === null ? null : this.#laneOf(from.letter, from.row)
    if (from === null || found === null) return
    const lanes = this.#groups.flatMap(({ said, lanes: all }) => all.map((lane) => ({ lane, letter: said.letter })))
    const target = lanes[lanes.findIndex(({ lane }) => lane === found.lane) + way]
    if (target === undefined) return
    const time = found.lane.start[found.position] ?? 0
    const position = Math.min(target.lane.last - 1, Math.max(target.lane.first, firstAfter(target.lane.start, target.lane.first, target.lane.last, time) - 1))
    const row = target.lane.order.row[position]
    if (row !== undefined) this.#selectAnd(row, target.letter, false)
  }

  /** Once: bring it to the middle. Again: come as close as it fills the view. */
  #focus(): void {
    if (this.#area !== null && this.#selected === null) { this.#goTo(fitted(this.#area.t0, this.#area.t1), true); return; }
    const found = this.#selected === null ? null : this.#laneOf(this.#selected.letter, this.#selected.row)
    if (found === null) { this.#command('fit-all'); return; }
    const at = (found.lane.start[found.position] ?? 0) + (Math.max(0, found.lane.duration(found.position)) * found.lane.scale) / 2
    const span = this.#camera.t1 - this.#camera.t0
    const isCentred = Math.abs(at - (this.#camera.t0 + this.#camera.t1) / 2) < span * 0.01
    this.#goTo(isCentred ? this.#around(found.lane, found.position) : { t0: at - span / 2, t1: at + span / 2 }, true)
  }

  #steps(): readonly { readonly group: number; readonly t0: number; readonly t1: number }[] {
    const base = this.#baseGroup()
    const segments = base?.lanes[0]?.order.segments
    const composed = base?.composed
    const rank = segments?.groups[0]?.rank
    if (segments === undefined || composed == null || base?.stepBegins == null) return []
    return segments.groups.flatMap((one, group) => {
      const t0 = base.stepBegins?.[group] ?? 0
      const length = ((composed.stepEnd[group] ?? 0) - (composed.stepStart[group] ?? 0)) * base.scale
      return one.rank === rank ? [{ group, t0, t1: t0 + length }] : []
    })
  }

  #goToStep(way: 1 | -1): void {
    const steps = this.#steps()
    const middle = (this.#camera.t0 + this.#camera.t1) / 2
    const now = steps.findLastIndex(({ t0 }) => t0 <= middle)
    const span = this.#camera.t1 - this.#camera.t0
    const isOne = now >= 0 && span < 2 * ((steps[now]?.t1 ?? 0) - (steps[now]?.t0 ?? 0))
    const target = steps[Math.min(steps.length - 1, Math.max(0, isOne ? now + way : Math.max(0, now)))]
    if (target !== undefined) this.#goTo(fitted(target.t0, target.t1), true)
  }

  #setArea(area: { readonly t0: number; readonly t1: number } | null): void {
    this.#area = area
    this.#touch()
    this.#saySelected()
    this.#sayView(false)
  }

  /** The area, else the step of the selection or in the middle of the view. */
  #loop(): void {
    if (this.#view.isLooping) this.#view = { ...this.#view, isLooping: false }
    else {
      if (this.#area === null) {
        const middle = this.#selected === null ? (this.#camera.t0 + this.#camera.t1) / 2 : (this.#axisOf(this.#selected.letter, this.#selected.row) ?? 0)
        const step = this.#steps().findLast(({ t0 }) => t0 <= middle)
        if (step === undefined) return
        this.#setArea({ t0: step.t0, t1: step.t1 })
      }
      this.#view = { ...this.#view, isLooping: true }
    }
    this.#sayView(false)
    this.#sayClock(true)
  }

  #search(): void {
    const { query } = this.#view
    const wanted = query.trim().toLowerCase()
    this.#isMatch =
      wanted === ''
        ? null
        : Uint8Array.from(this.#layout?.tasks ?? [], ({ name, family, op, task_id: id }) =>
            [name, family, op, id].some((text) => text.toLowerCase().includes(wanted)) ? 1 : 0,
          )
    this.#hits = mark(this.#groups, this.#isMatch)
    this.#touch()
    this.#sayStatus()
  }

  #goToHit(way: 1 | -1): void {
    const isMatch = this.#isMatch
    const group = this.#groups.find(({ said }) => said.letter === (this.#selected?.letter ?? this.#view.baseline)) ?? this.#groups[0]
    if (isMatch === null || group === undefined) return
    const now = this.#selected === null ? this.#camera.t0 : (this.#axisOf(group.said.letter, this.#selected.row) ?? this.#camera.t0)
    let best: { readonly at: number; readonly row: number } | null = null
    for (const lane of group.lanes) {
      const from = firstAfter(lane.start, lane.first, lane.last, way > 0 ? now : now - 0.5)
      for (let position = way > 0 ? from : from - 1; position >= lane.first && position < lane.last; position += way) {
        if (isMatch[lane.order.task[position] ?? 0] !== 1) continue
        const at = lane.start[position] ?? 0
        if (best === null || (at - best.at) * way < 0) best = { at, row: lane.order.row[position] ?? 0 }
        break
      }
    }
    if (best !== null) this.#selectAnd(best.row, group.said.letter, true)
  }

  #take(view: Partial<View>): void {
    const before = this.#view
    this.#view = { ...before, ...view }
    if (view.t0 != null && view.t1 != null && view.t1 > view.t0) {
      this.#camera = { t0: view.t0, t1: view.t1 }
      this.#isFit = false
    } else if (view.t0 === null) {
      this.#camera = fitted(0, this.#simulatedEnd)
      this.#isFit = true
    }
    if (view.selected !== undefined) this.#selected = selectionOf(view.selected)
    if (view.area !== undefined) this.#area = areaOf(view.area)
    const isOther = (name: keyof View) => view[name] !== undefined && view[name] !== before[name]
    if (view.pins !== undefined && view.pins.join() !== before.pins.join()) this.#arrange()
    if (isOther('query')) this.#search()
    if (isOther('colour')) this.#palette = paletteOf(this.#layout?.tasks ?? [], this.#view.colour)
    if (isOther('align')) this.#isFit = true
    if (isOther('align') || isOther('colour') || isOther('baseline')) this.#compose()
    else if (view.selected !== undefined || view.area !== undefined) this.#saySelected()
    this.#touch()
    this.#sayView(false)
    if (isOther('playhead')) this.#sayClock(true)
  }

  // --- time ----------------------------------------------------------------------------------------------------------------

  #seek(time: number): void {
    this.#view = { ...this.#view, playhead: Math.min(this.#end, Math.max(0, time)) }
    this.#touch()
    this.#sayClock(true)
    this.#sayView(false)
  }

  #play(elapsedMs: number): void {
    const { playhead, isLooping } = this.#view
    if (!this.#isPlaying || playhead === null) return
    let next = playhead + elapsedMs * 1e6 * this.#speed
    if (isLooping && this.#area !== null) {
      const { t0, t1 } = this.#area
      if (next >= t1 || next < t0) next = t0 + ((((next - t0) % (t1 - t0)) + (t1 - t0)) % (t1 - t0))
    } else if (next >= this.#end) {
      next = this.#end
      this.#isPlaying = false
    }
    this.#view = { ...this.#view, playhead: next }
    this.#isDirty = true
    this.#sayClock(!this.#isPlaying)
    if (!this.#isPlaying) this.#sayView(false)
  }

  #sayClock(isNow: boolean): void {
    const now = performance.now()
    if (!isNow && now - this.#clockSaid < CLOCK_EVERY_MS) return
    this.#clockSaid = now
    const time = this.#view.playhead
    const running = time === null ? [] : this.#groups.map((group) => ({ letter: group.said.letter, ...this.#runningAt(group, time) }))
    this.say({ op: 'clock', time, isPlaying: this.#isPlaying, speed: this.#speed, running })
  }

  #runningAt(group: Group, time: number): { readonly name: string; readonly step: string } {
    for (const lane of group.lanes) {
      if (lane.isThin) continue
      const position = firstAfter(lane.start, lane.first, lane.last, time) - 1
      if (position < lane.first) continue
      const isOver = (lane.start[position] ?? 0) + Math.max(0, lane.duration(position)) * lane.scale < time
      const at = groupAt(lane.order.segments, position)
      return { name: isOver ? '' : this.#labelOf(lane.order.task[position] ?? 0), step: stepWords(this.#described, lane.order, at) }
    }
    return { name: '', step: '' }
  }

  // --- saying --------------------------------------------------------------------------------------------------------------

  #saySelected(): void {
    const described = this.#described
    const launch = this.#selected === null ? null : launchSaid(described, this.#selected.row, this.#selected.letter)
    const area = this.#area === null ? null : { ...this.#area, on: areaSaid(this.#groups.map((group) => areaOn(described, group, this.#area ?? { t0: 0, t1: 0 })), described.baseline) }
    this.say({ op: 'selected', launch, area })
  }

  #sayView(isJump: boolean): void {
    const tell = () => {
      this.#viewTimer = undefined
      const camera = this.#animation?.to ?? this.#camera
      const isAll = this.#isFit
      this.#view = {
        ...this.#view,
        t0: isAll ? null : rounded(camera.t0, camera),
        t1: isAll ? null : rounded(camera.t1, camera),
        playhead: this.#view.playhead === null ? null : Math.round(this.#view.playhead),
        selected: this.#selected === null ? null : `${this.#selected.letter}.${this.#selected.row}`,
        area: this.#area === null ? null : `${Math.round(this.#area.t0)}-${Math.round(this.#area.t1)}`,
      }
      this.say({ op: 'view', view: this.#view, isJump })
      this.#sayTwin()
    }
    if (isJump) {
      clearTimeout(this.#viewTimer)
      tell()
    } else this.#viewTimer ??= setTimeout(tell, VIEW_EVERY_MS)
  }

  #sayStatus(): void {
    const inLanes = this.#sources?.order.row.length ?? 0
    this.say({
      op: 'status',
      loaded: this.#launches.count,
      total: this.#total,
      isComplete: this.#layout?.is_complete ?? false,
      perPixel: this.#painter.perPixel,
      outside: this.#sources === null ? 0 : this.#sources.launches.count - inLanes,
      end: this.#end,
      isFollowing: this.#isFollowing,
      hits: this.#isMatch === null ? null : this.#hits,
      error: this.#error,
      shownError: this.#groups.length > 0 && this.#error !== '',
    })
  }

  /** What the canvas shows as rows of a table, of the selected config's lanes or the baseline's. */
  #sayTwin(): void {
    if (!this.#isTwin) return
    const group = this.#groups.find(({ said }) => said.letter === this.#selected?.letter) ?? this.#baseGroup()
    const rows: TwinRow[] = []
    let total = 0
    for (const lane of group?.lanes ?? []) {
      const from = Math.max(lane.first, firstAfter(lane.start, lane.first, lane.last, this.#camera.t0) - 1)
      const to = firstAfter(lane.start, lane.first, lane.last, this.#camera.t1)
      total += to - from
      for (let position = from; position < to && rows.length < TWIN_ROWS_MAX; position += 1) {
        const task = lane.order.task[position] ?? 0
        const duration = lane.duration(position)
        rows.push({
          row: lane.order.row[position] ?? 0,
          name: this.#labelOf(task),
          family: this.#layout?.tasks[task]?.family ?? 'unknown',
          lane: lane.title,
          start: lane.own[position] ?? 0,
          duration: lane.isPendingAt(position) || duration < 0 ? null : duration,
          step: stepWords(this.#described, lane.order, groupAt(lane.order.segments, position)),
        })
      }
    }
    this.say({ op: 'twin', letter: group?.said.letter ?? '', rows, total })
  }

  #labelOf(task: number): string {
    let known = this.#labels.get(task)
    if (known === undefined) {
      known = shortKernel(this.#layout?.tasks[task]?.name ?? '')
      this.#labels.set(task, known)
    }
    return known
  }

  // --- frames --------------------------------------------------------------------------------------------------------------

  #touch(): void {
    this.#isDirty = true
    this.#wake()
  }

  #wake(): void {
    if (this.#frame === 0) this.#frame = requestAnimationFrame((now) => this.#tick(now))
  }

  #tick(now: number): void {
    this.#frame = 0
    const elapsed = this.#lastFrame === 0 ? 0 : now - this.#lastFrame
    this.#lastFrame = now
    this.#play(Math.min(elapsed, 100))
    this.#move(now)
    if (this.#isDirty) {
      this.#isDirty = false
      this.#draw()
    }
    if (this.#isMeasuring && elapsed > 0 && this.#frameMs.length < FRAMES_KEPT) this.#frameMs.push(elapsed)
    if (this.#isPlaying || this.#animation !== null || this.#isFollowing || this.#isMeasuring) this.#wake()
    else this.#lastFrame = 0
  }

  #move(now: number): void {
    if (this.#animation !== null) {
      const share = (now - this.#animation.began) / ANIMATION_MS
      this.#camera = between(this.#animation.from, this.#animation.to, share)
      if (share >= 1) this.#animation = null
      this.#isDirty = true
    } else if (this.#isFollowing) {
      const span = this.#camera.t1 - this.#camera.t0
      const target = this.#simulatedEnd - span * EDGE_SHARE
      // Eased: the edge comes in jumps, and jumping with it would flicker.
      const shift = (target - this.#camera.t0) * (this.#isMotionReduced ? 1 : 0.15)
      if (Math.abs(shift) > span * 1e-4) {
        this.#camera = { t0: this.#camera.t0 + shift, t1: this.#camera.t1 + shift }
        this.#isDirty = true
      }
    }
  }

  #draw(): void {
    if (this.#colours.bg0 === undefined) return
    const began = performance.now()
    const layout = this.#layout
    const tasks = layout?.tasks ?? []
    const segments = this.#sources?.order.segments
    this.#painter.paint({
      width: this.#width,
      height: this.#height,
      ratio: this.#ratio,
      camera: this.#camera,
      scrollY: this.#scrollY,
      end: this.#simulatedEnd,
      groups: this.#groups,
      places: this.#places,
      pinned: this.#pinned,
      pinnedHeight: this.#pinnedHeight,
      tokens: this.#palette.tokens,
      colours: this.#colours,
      isDark: this.#isDark,
      labelOf: (task) => this.#labelOf(task),
      isCollective: (task) => tasks[task]?.family === 'collective',
      stepName: (group) => {
        const step = segments?.groups[group]
        return step === undefined ? '' : `${this.#phaseOf(group)} ${step.step}`
      },
      phaseOf: (group) => this.#phaseOf(group),
      baseline: this.#view.baseline,
      selectedRow: this.#selected?.row ?? null,
      selectedLetter: this.#selected?.letter ?? '',
      hoveredRow: this.#hovered?.row ?? null,
      area: this.#area,
      playhead: this.#view.playhead,
      flags: this.#view.flags,
      liveEdge: layout?.is_complete === false ? this.#simulatedEnd : null,
      isSearching: this.#isMatch !== null,
      axisWord: (time, every) => this.#axisWord(time, every),
    })
    const took = performance.now() - began
    if (this.#isMeasuring && this.#drawMs.length < FRAMES_KEPT) this.#drawMs.push(took)
    if (this.#loadedAt !== null && this.#groups.length > 0) this.#firstPaintMs ??= performance.now() - this.#loadedAt
  }

  #phaseOf(group: number): string {
    const step = this.#sources?.order.segments.groups[group]
    return step === undefined ? '' : (this.#phases.get(`${step.rank}.${step.step}`) ?? 'step')
  }

  #axisWord(time: number, every: number): string {
    if (this.#view.align === 'progress') return `${digits((100 * time) / this.#simulatedEnd)} %`
    if (time === 0) return '0'
    // As many digits as tell neighbours apart, in the unit of the tick.
    const unit = every >= 1e9 ? 1e9 : every >= 1e6 ? 1e6 : every >= 1e3 ? 1e3 : 1
    const words = { 1e9: 's', 1e6: 'ms', 1e3: 'µs', 1: 'ns' } as const
    const value = Math.round(time / unit)
    return Math.abs(value) < 100_000 ? `${value.toLocaleString('en-US').replace(/,/g, ' ')} ${words[unit]}` : timeWithUnit(ms(time / 1e6))
  }
}

const measured = (context: OffscreenCanvasRenderingContext2D): Advances => {
  context.font = "11px 'Inter Variable', Inter, system-ui, 'Liberation Sans', sans-serif"
  return new Advances((text) => context.measureText(text).width)
}

function selectionOf(said: string | null): { readonly row: number; readonly letter: string } | null {
  const [letter, row] = (said ?? '').split('.')
  return letter === undefined || row === undefined || !/^\d+$/.test(row) ? null : { letter, row: Number(row) }
}

function areaOf(said: string | null): { readonly t0: number; readonly t1: number } | null {
  const [t0, t1] = (said ?? '').split('-').map(Number)
  return t0 === undefined || t1 === undefined || !(t1 > t0) ? null : { t0, t1 }
}

/** To a hundredth of a pixel: short addresses, the same picture. */
function rounded(time: number, camera: Camera): number {
  const grain = 10 ** Math.floor(Math.log10((camera.t1 - camera.t0) / 1e5))
  return grain >= 1 ? Math.round(time / grain) * grain : Number(time.toFixed(3))
}
