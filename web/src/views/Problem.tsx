import styles from './Problem.module.css'

/** The server's sentence, and a way on; the rest of the page lives. */
export function Problem({ error, onRetry }: { readonly error: Error; readonly onRetry?: () => void }) {
  return (
    <div role="alert" className={styles.problem}>
      <span>{error.message}</span>
      {onRetry && (
        <button type="button" className="button" onClick={onRetry}>
          Retry
        </button>
      )}
    </div>
  )
}
