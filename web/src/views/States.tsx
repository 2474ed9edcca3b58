import type { ReactNode } from 'react'
import styles from './States.module.css'

/** Nothing is here: one sentence, one action, one example. */
export function Empty({ children, action }: { readonly children: ReactNode; readonly action?: ReactNode }) {
  return (
    <div className={styles.empty}>
      <p>{children}</p>
      {action}
    </div>
  )
}

/** The final size in grey, and only where the wait is long enough to be seen. */
export function Loading({ words, rows = 3, height }: { readonly words: string; readonly rows?: number; readonly height?: number }) {
  return (
    <div className={styles.loading} role="status" style={height === undefined ? undefined : { height }}>
      <span className="visually-hidden">{words}</span>
      {Array.from({ length: rows }, (_, row) => (
        <span key={row} className={styles.bone} style={{ width: `${92 - ((row * 23) % 41)}%` }} />
      ))}
    </div>
  )
}

/** Something keeps this from being current; what is shown stays. */
export function Strip({ children }: { readonly children: ReactNode }) {
  return (
    <p role="status" className={styles.strip}>
      {children}
    </p>
  )
}
