import { watch, type Connection, type Said } from '../feed/socket'
import type { FeedRecord } from '../feed/frames'
import { unreachable } from '../lib/unreachable'
import { Recording } from './recording'
import { FOLDED_TYPES } from './run'

export type Link = 'connecting' | 'live' | 'complete' | 'reconnecting' | 'refused'

/** What a page shows of a run's feed; a new value each time something changed. */
export interface FeedView {
  readonly recording: Recording
  /** Grows with every change of the recording, which is the same object throughout. */
  readonly version: number
  readonly recordCount: number
  readonly link: Link
  readonly error: string
}

const RETRY_MS_MIN = 250
const RETRY_MS_MAX = 8000

/** One run's records, kept up to date over /ws and across broken connections. */
export class RunFeed {
  #view: FeedView
  #connection: Connection | null = null
  #retryMs = RETRY_MS_MIN
  #timer: number | undefined
  #frame: number | undefined
  /** While records are read anew over ones that are shown: what has been read. Shown once whole, so nothing flickers. */
  #anew: Recording | null = null
  #seekId = 0
  #awaitedSeek: number | null = null
  readonly #listeners = new Set<() => void>()

  constructor(readonly runId: string) {
    this.#view = {
      recording: new Recording(runId),
      version: 0,
      recordCount: 0,
      link: 'connecting',
      error: '',
    }
  }

  readonly view = (): FeedView => this.#view

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener)
    if (this.#listeners.size === 1) this.#connect()
    return () => {
      this.#listeners.delete(listener)
      if (this.#listeners.size === 0) this.#disconnect()
    }
  }

  #connect(): void {
    // From the start, each time: positions are final only once the run has ended, and a feed without rows is short.
    this.#anew = new Recording(this.runId)
    this.#awaitedSeek = null
    this.#connection = watch(this.runId, 0, FOLDED_TYPES, {
      onSaid: (said) => this.#hear(said),
      onRecords: (records) => this.#take(records),
      onClosed: () => this.#retry(),
    })
  }

  #disconnect(): void {
    window.clearTimeout(this.#timer)
    this.#connection?.close()
    this.#connection = null
  }

  #retry(): void {
    this.#connection = null
    if (this.#view.link === 'refused' || this.#view.link === 'complete') return
    this.#change({ link: this.#view.link === 'connecting' ? 'connecting' : 'reconnecting' })
    // Some chance, so that many pages do not come back in one moment.
    const waitMs = this.#retryMs * (0.75 + Math.random() / 2)
    this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MS_MAX)
    this.#timer = window.setTimeout(() => this.#connect(), waitMs)
  }

  #hear(said: Said): void {
    switch (said.op) {
      case 'hello':
        this.#retryMs = RETRY_MS_MIN
        this.#change({ recordCount: said.record_count, error: '' })
        return
      case 'at':
        if (said.id === this.#awaitedSeek) {
          this.#awaitedSeek = null
          this.#anew = new Recording(this.runId)
        }
        return
      case 'live':
        this.#change({ link: 'live', recordCount: said.record_count, ...this.#whole() })
        return
      case 'fixed':
        // The order is final now and may differ from the one records came in: read it once more, whole.
        this.#seekId += 1
        this.#awaitedSeek = this.#seekId
        this.#change({ recordCount: said.record_count })
        this.#connection?.seek(0, this.#seekId)
        return
      case 'end':
        if (this.#awaitedSeek !== null) return
        this.#change({ link: 'complete', recordCount: said.record_count, ...this.#whole() })
        return
      case 'error':
        this.#change({ link: 'refused', error: said.error })
        return
      default:
        unreachable(said)
    }
  }

  /** The recording that was read behind the scenes takes the shown one's place. */
  #whole(): Partial<FeedView> {
    const recording = this.#anew
    this.#anew = null
    return recording === null ? {} : { recording }
  }

  #take(records: readonly FeedRecord[]): void {
    if (this.#awaitedSeek !== null) return // of the place before the seek
    if (this.#anew !== null && this.#view.recording.records.length === 0) this.#change(this.#whole())
    const recording = this.#anew ?? this.#view.recording
    recording.append(records)
    const last = recording.records.at(-1)
    const recordCount = Math.max(this.#view.recordCount, last === undefined ? 0 : last.position + 1)
    if (this.#anew === null) this.#change({ recordCount })
  }

  /** Listeners are told once per frame of the screen, however many records a second come. */
  #change(changes: Partial<FeedView>): void {
    this.#view = { ...this.#view, ...changes, version: this.#view.version + 1 }
    if (this.#frame !== undefined) return
    const tell = () => {
      this.#frame = undefined
      for (const listener of this.#listeners) listener()
    }
    this.#frame = document.visibilityState === 'visible' ? requestAnimationFrame(tell) : window.setTimeout(tell, 500)
  }
}
