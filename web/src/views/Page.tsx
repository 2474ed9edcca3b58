import type { ReactNode } from 'react'
import styles from './Page.module.css'

/** A page outside of a run: its title, what acts on the whole of it, and the rest. */
export function Page({ title, actions, children }: { readonly title: string; readonly actions?: ReactNode; readonly children: ReactNode }) {
  return (
    <div className={styles.page}>
      <div className={styles.head}>
        <h1>{title}</h1>
        {actions}
      </div>
      {children}
    </div>
  )
}
