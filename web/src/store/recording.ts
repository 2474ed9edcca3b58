import type { FeedRecord } from '../feed/frames'
import type { LogMs } from '../lib/units'
import { applyAll, emptyRun, type Run } from './run'

const RECORDS_PER_CHECKPOINT = 256

/** A run's records so far, and what was known after each: any moment is a checkpoint and a few events away. */
export class Recording {
  readonly #records: FeedRecord[] = []
  readonly #checkpoints: Run[]
  #head: Run

  constructor(readonly runId: string) {
    this.#head = emptyRun(runId)
    this.#checkpoints = [this.#head]
  }

  get head(): Run {
    return this.#head
  }

  get records(): readonly FeedRecord[] {
    return this.#records
  }

  /** Records in order of position; what is there already is passed over, so a frame may come twice. */
  append(records: readonly FeedRecord[]): void {
    const last = this.#records.at(-1)?.position ?? -1
    let fresh = records.filter((record) => record.position > last)
    while (fresh.length > 0) {
      const room = RECORDS_PER_CHECKPOINT - (this.#records.length % RECORDS_PER_CHECKPOINT)
      const part = fresh.slice(0, room)
      this.#records.push(...part)
      this.#head = applyAll(
        this.#head,
        part.map((record) => record.event),
      )
      if (part.length === room) this.#checkpoints.push(this.#head)
      fresh = fresh.slice(room)
    }
  }

  /** What was known before the record at this position was said. */
  at(position: number): Run {
    const count = this.countBefore(position)
    const checkpoint = Math.floor(count / RECORDS_PER_CHECKPOINT)
    const start = this.#checkpoints[checkpoint]
    if (start === undefined) throw new Error(`checkpoint ${checkpoint} is missing`)
    return applyAll(
      start,
      this.#records.slice(checkpoint * RECORDS_PER_CHECKPOINT, count).map((record) => record.event),
    )
  }

  /** When the last record before this position was said. */
  timeAt(position: number): LogMs | null {
    return this.#records[Math.max(0, this.countBefore(position) - 1)]?.at ?? null
  }

  countBefore(position: number): number {
    let [low, high] = [0, this.#records.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if ((this.#records[middle]?.position ?? 0) < position) low = middle + 1
      else high = middle
    }
    return low
  }
}
