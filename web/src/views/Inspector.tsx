import { createContext, useContext, useMemo, useState, type ReactNode } from 'react'
import { createPortal } from 'react-dom'
import type { Binding } from '../lib/keys'
import styles from './Inspector.module.css'
import { useKeys } from './useKeys'

interface Inspecting {
  readonly isOpen: boolean
  readonly setOpen: (isOpen: boolean) => void
}

const Open = createContext<Inspecting>({ isOpen: false, setOpen: () => undefined })
const Slot = createContext<HTMLElement | null>(null)

/** Whether the panel at the right is open, and how to open it. */
export const useInspector = (): Inspecting => useContext(Open)

/** A page with the one panel for details at its right: selection, reasons, log. `I` shows and hides it. */
export function InspectorFrame({ children }: { readonly children: ReactNode }) {
  const [isOpen, setOpen] = useState(false)
  const [slot, setSlot] = useState<HTMLElement | null>(null)
  const inspecting = useMemo(() => ({ isOpen, setOpen }), [isOpen])
  useKeys(
    useMemo<readonly Binding[]>(
      () => [{ keys: 'i', words: 'Inspector', group: 'Everywhere', run: () => setOpen((now) => !now) }],
      [],
    ),
  )
  return (
    <Open value={inspecting}>
      <Slot value={slot}>
        <div className={styles.frame}>
          <div className={styles.page}>{children}</div>
          <aside className={styles.panel} aria-label="Inspector" hidden={!isOpen}>
            <button type="button" className={`button quiet ${styles.close}`} aria-label="Close the inspector" onClick={() => setOpen(false)}>
              ×
            </button>
            <div ref={setSlot} className={styles.slot} />
            <p className={styles.none}>Nothing is selected here.</p>
          </aside>
        </div>
      </Slot>
    </Open>
  )
}

/** What a page shows in the panel; several stand under each other. */
export function InInspector({ title, children }: { readonly title: string; readonly children: ReactNode }) {
  const slot = useContext(Slot)
  if (slot === null) return null
  return createPortal(
    <section className={styles.section} aria-label={title}>
      <h2>{title}</h2>
      {children}
    </section>,
    slot,
  )
}
