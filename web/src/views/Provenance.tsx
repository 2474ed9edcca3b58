import { PROVENANCE, type Provenance as Kind } from '../lib/words'
import styles from './Provenance.module.css'

/** Shape and word, beside the name of every trace and run: where its times are from. */
export function Provenance({ kind }: { readonly kind: Kind | null }) {
  if (kind === null) return null
  const { word, meaning } = PROVENANCE[kind]
  return (
    <span className={`${styles.badge} ${styles[kind]}`} title={meaning}>
      <svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
        <Shape kind={kind} />
      </svg>
      {word}
    </span>
  )
}

function Shape({ kind }: { readonly kind: Kind }) {
  switch (kind) {
    case 'measured':
      return <circle cx="6" cy="6" r="4.5" fill="currentColor" />
    case 'recorded-on-cpu':
      return (
        <>
          <circle cx="6" cy="6" r="4.5" fill="none" stroke="currentColor" strokeWidth="1.5" />
          <path d="M6 1.5a4.5 4.5 0 0 0 0 9z" fill="currentColor" />
        </>
      )
    case 'synthesized':
      return <circle cx="6" cy="6" r="4.5" fill="none" stroke="currentColor" strokeWidth="1.5" strokeDasharray="2 1.5" />
  }
}
