import styles from './Status.module.css'

const TONES: Readonly<Record<string, string | undefined>> = {
  running: styles.busy,
  importing: styles.busy,
  complete: styles.good,
  'complete, with failures': styles.warn,
  truncated: styles.warn,
  cancelled: styles.quiet,
  failed: styles.bad,
  rejected: styles.bad,
}

export function Status({ word }: { readonly word: string }) {
  return <span className={`${styles.status} ${TONES[word] ?? styles.quiet}`}>{word}</span>
}
