import { useImperativeHandle, useRef, type Ref } from 'react'
import type { HoverSaid } from '../../canvas/protocol'
import { familyShown } from '../../lib/families'
import { digits, timeWithUnit } from '../../lib/format'
import { ms } from '../../lib/units'
import styles from './HoverCard.module.css'

export interface HoverCardHandle {
  readonly show: (hover: HoverSaid | null) => void
}

/** Follows the pointer; written by hand, since React would render it sixty times a second. */
export function HoverCard({ ref }: { readonly ref: Ref<HoverCardHandle> }) {
  const card = useRef<HTMLDivElement>(null)
  const pending = useRef<number | undefined>(undefined)
  useImperativeHandle(ref, () => ({
    show: (hover) => {
      if (pending.current !== undefined) cancelAnimationFrame(pending.current)
      pending.current = requestAnimationFrame(() => {
        pending.current = undefined
        if (card.current !== null) fill(card.current, hover)
      })
    },
  }))
  return <div ref={card} className={styles.card} aria-hidden="true" hidden />
}

function fill(card: HTMLElement, hover: HoverSaid | null): void {
  card.hidden = hover === null
  if (hover === null) return
  const title = document.createElement('strong')
  title.textContent = hover.title
  title.style.borderLeft = `3px solid var(--${familyShown(hover.family).token})`
  const lines = hover.lines.map((text) => {
    const line = document.createElement('span')
    line.textContent = text
    return line
  })
  const table = document.createElement('div')
  table.className = styles.on ?? ''
  for (const { letter, duration, ratio } of hover.on) {
    for (const text of [letter, duration === null ? '–' : timeWithUnit(ms(duration / 1e6)), ratio === null ? '' : `${digits(ratio)}×`]) {
      const cell = document.createElement('span')
      cell.textContent = text
      table.append(cell)
    }
  }
  card.replaceChildren(title, ...lines, table)
  const frame = card.parentElement
  const [width, height] = [frame?.clientWidth ?? 0, frame?.clientHeight ?? 0]
  // Beside the pointer, on whichever side there is room.
  const x = hover.x + 16 + card.offsetWidth > width ? hover.x - 12 - card.offsetWidth : hover.x + 16
  const y = Math.max(4, Math.min(hover.y + 16, height - card.offsetHeight - 4))
  card.style.transform = `translate(${Math.round(Math.max(4, x))}px, ${Math.round(y)}px)`
}
