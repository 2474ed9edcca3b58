/** What page and timeline worker say to each other. Plain values only: they cross by structured clone. */

/**
 * time: one axis. step: equal steps start together. kernel: equal launches do, each in a column as wide as on the slowest
 * config. progress: each config from its begin to its end.
 */
export const ALIGNMENTS = ['time', 'step', 'kernel', 'progress'] as const
export type Alignment = (typeof ALIGNMENTS)[number]
export const COLOURS = ['family', 'bound', 'error'] as const
export type Colour = (typeof COLOURS)[number]

export interface ConfigSaid {
  /** Unique among those shown. */
  readonly id: string
  readonly runId: string
  readonly configId: string
  readonly letter: string
  readonly name: string
  readonly label: string
  readonly isVariant: boolean
  /** Colour token of its class. */
  readonly token: string
}

/** What is shown, as far as an address tells it. Times are ns on the axis. */
export interface View {
  readonly t0: number | null
  readonly t1: number | null
  readonly playhead: number | null
  /** `A.88112`: config letter and row; `src.12`: as measured. */
  readonly selected: string | null
  /** `12.5-80`: ns. */
  readonly area: string | null
  readonly align: Alignment
  readonly colour: Colour
  readonly query: string
  readonly baseline: string
  readonly flags: readonly Flag[]
  /** Lanes that stay above all others: `A.0`, a group's letter and the number of its lane. */
  readonly pins: readonly string[]
  readonly isLooping: boolean
}

export interface Flag {
  readonly time: number
  readonly name: string
}

export type Command =
  | 'zoom-in'
  | 'zoom-out'
  | 'left'
  | 'right'
  | 'page-left'
  | 'page-right'
  | 'previous'
  | 'next'
  | 'lane-above'
  | 'lane-below'
  | 'focus'
  | 'fit-all'
  | 'back'
  | 'previous-step'
  | 'next-step'
  | 'selection-to-area'
  | 'loop'
  | 'flag'
  | 'play'
  | 'slower'
  | 'faster'
  | 'follow'
  | 'next-hit'
  | 'previous-hit'
  | 'collapse'
  | 'pin'
  | 'next-colour'
  | 'clear'

export type ToTimeline =
  | { readonly op: 'start'; readonly canvas: OffscreenCanvas; readonly traceId: string; readonly configs: readonly ConfigSaid[]; readonly source: string; readonly view: Partial<View> }
  | { readonly op: 'size'; readonly width: number; readonly height: number; readonly ratio: number }
  | { readonly op: 'theme'; readonly colours: Readonly<Record<string, readonly [number, number, number]>>; readonly isDark: boolean }
  | { readonly op: 'pointer'; readonly kind: 'move' | 'down' | 'up' | 'leave' | 'double'; readonly x: number; readonly y: number; readonly isShift: boolean; readonly button: number }
  | { readonly op: 'wheel'; readonly x: number; readonly y: number; readonly dx: number; readonly dy: number; readonly isShift: boolean }
  | { readonly op: 'command'; readonly command: Command }
  | { readonly op: 'view'; readonly view: Partial<View>; readonly isJump: boolean }
  | { readonly op: 'solo'; readonly letter: string }
  | { readonly op: 'step'; readonly step: number }
  | { readonly op: 'results'; readonly id: string }
  | { readonly op: 'results-hidden'; readonly known: readonly string[] | null }
  | { readonly op: 'twin'; readonly isOn: boolean }
  | { readonly op: 'motion'; readonly isReduced: boolean }
  | { readonly op: 'perf'; readonly isOn: boolean }

/** A launch on one config. Times in ns; null: not known. */
export interface OnConfig {
  readonly letter: string
  readonly name: string
  readonly start: number
  readonly duration: number | null
  readonly p10: number | null
  readonly p90: number | null
  readonly ratio: number | null
  readonly bound: string
  readonly tier: string
  readonly reason: string
  readonly forward: number | null
  readonly roofline: number | null
  readonly correction: number | null
  readonly state: 'known' | 'pending' | 'failed' | 'measured'
}

export interface LaunchSaid {
  readonly row: number
  readonly rank: number
  readonly seq: number
  readonly stream: number
  readonly taskId: string
  readonly name: string
  readonly signature: string
  readonly op: string
  readonly family: string
  readonly step: string
  readonly on: readonly OnConfig[]
  /** Letter of the config in whose lane it was chosen. */
  readonly letter: string
}

export interface AreaOn {
  readonly letter: string
  readonly name: string
  readonly count: number
  readonly pendingCount: number
  readonly busy: number
  /** Time in which no lane runs anything. */
  readonly gaps: number
  readonly span: number
  readonly min: number
  readonly mean: number
  readonly p99: number
  readonly max: number
  readonly longest: string
  readonly ratio: number | null
  readonly families: readonly { readonly family: string; readonly busy: number }[]
}

export interface HoverSaid {
  readonly x: number
  readonly y: number
  readonly title: string
  readonly family: string
  readonly lines: readonly string[]
  readonly on: readonly { readonly letter: string; readonly duration: number | null; readonly ratio: number | null }[]
}

export interface TwinRow {
  readonly row: number
  readonly name: string
  readonly family: string
  readonly lane: string
  readonly start: number
  readonly duration: number | null
  readonly step: string
}

export interface PerfSaid {
  readonly drawMs: readonly number[]
  readonly frameMs: readonly number[]
  /** From the last page of launches decoded to the first config's lanes drawn of all of them, and to everybody's. */
  readonly firstPaintMs: number | null
  readonly allPaintMs: number | null
  readonly spans: number
}

export type FromTimeline =
  | { readonly op: 'hover'; readonly hover: HoverSaid | null }
  | { readonly op: 'selected'; readonly launch: LaunchSaid | null; readonly area: { readonly t0: number; readonly t1: number; readonly on: readonly AreaOn[] } | null }
  | { readonly op: 'view'; readonly view: View; readonly isJump: boolean }
  | {
      readonly op: 'status'
      readonly loaded: number
      readonly total: number
      readonly isComplete: boolean
      readonly perPixel: number
      readonly outside: number
      readonly end: number
      readonly isFollowing: boolean
      readonly hits: number | null
      readonly error: string
      readonly shownError: boolean
    }
  | { readonly op: 'clock'; readonly time: number | null; readonly isPlaying: boolean; readonly speed: number; readonly running: readonly { readonly letter: string; readonly name: string; readonly step: string }[] }
  | { readonly op: 'twin'; readonly letter: string; readonly rows: readonly TwinRow[]; readonly total: number }
  | { readonly op: 'cursor'; readonly cursor: string }
  | { readonly op: 'perf'; readonly perf: PerfSaid }
