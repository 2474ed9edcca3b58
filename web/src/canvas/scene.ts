/** Where groups and lanes stand on the canvas, top to bottom; CSS pixels. */
export interface Place {
  /** pin: a lane once more, above all others, where it stays while they are scrolled. */
  readonly kind: 'header' | 'lane' | 'summary' | 'pin'
  readonly group: number
  /** Index among the group's lanes. */
  readonly lane: number
  readonly y: number
  readonly height: number
}

export interface SceneGroup {
  readonly isCollapsed: boolean
  readonly lanes: readonly { readonly isThin: boolean }[]
}

export const GUTTER = 168
export const MINIMAP = 32
export const RULER = 22
export const TOP = MINIMAP + RULER
const HEADER = 26
const LANE = 24
const LANE_MAX = 64
const THIN = 16
const GAP = 3
const GROUP_GAP = 8

/** y counts from the top of the scrolled area. room: pixels there are; few lanes grow into it. */
export function scene(groups: readonly SceneGroup[], room: number): { readonly places: readonly Place[]; readonly height: number } {
  const lanes = groups.flatMap(({ isCollapsed, lanes: all }) => (isCollapsed ? [] : all.filter(({ isThin }) => !isThin)))
  const least = stacked(groups, LANE)
  const spare = lanes.length > 0 ? Math.floor((room - least.height) / lanes.length) : 0
  return spare > 0 ? stacked(groups, Math.min(LANE + spare, LANE_MAX)) : least
}

function stacked(groups: readonly SceneGroup[], laneHeight: number): { readonly places: readonly Place[]; readonly height: number } {
  const places: Place[] = []
  let y = 0
  groups.forEach(({ isCollapsed, lanes }, group) => {
    places.push({ kind: 'header', group, lane: -1, y, height: HEADER })
    y += HEADER
    if (isCollapsed) {
      places.push({ kind: 'summary', group, lane: 0, y, height: 8 })
      y += 8
    } else {
      lanes.forEach(({ isThin }, lane) => {
        const height = isThin ? THIN : laneHeight
        places.push({ kind: 'lane', group, lane, y, height })
        y += height + GAP
      })
    }
    y += GROUP_GAP
  })
  return { places, height: y }
}

/** Pinned lanes under each other, with y from the top of their own area; height 0 without any. */
export function pinnedScene(pins: readonly { readonly group: number; readonly lane: number }[]): { readonly places: readonly Place[]; readonly height: number } {
  const places = pins.map((pin, at): Place => ({ kind: 'pin', ...pin, y: GAP + at * (LANE + GAP), height: LANE }))
  return { places, height: places.length === 0 ? 0 : GAP + places.length * (LANE + GAP) + GAP }
}

export type Region = 'minimap' | 'ruler' | 'gutter' | 'lanes'

export function regionAt(x: number, y: number): Region {
  if (y < MINIMAP) return 'minimap'
  if (x < GUTTER) return 'gutter'
  return y < TOP ? 'ruler' : 'lanes'
}

export const placeAt = (places: readonly Place[], y: number): Place | undefined =>
  places.find((place) => y >= place.y && y < place.y + place.height)
