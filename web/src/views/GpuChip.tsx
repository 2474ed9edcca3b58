import { CLASS_WORD, classOf, isHypothetical, shortName } from '../lib/gpus'
import type { GpuSpec } from '../schema/events'
import styles from './GpuChip.module.css'

interface Props {
  readonly gpu: GpuSpec
  /** As on the command line; where it names overrides, the GPU is one that nobody has built. */
  readonly label: string
  /** The config's letter within its run: its identity on screen. */
  readonly letter?: string
  readonly hasLabel?: boolean
}

/** A config in one line: letter, name, and the class it belongs to as a gutter and in words. */
export function GpuChip({ gpu, label, letter, hasLabel = false }: Props) {
  const isVariant = isHypothetical(label)
  return (
    <span
      className={`${styles.chip} ${isVariant ? styles.variant : ''}`}
      style={{ borderLeftColor: `var(--${isVariant ? 'hypothetical' : classOf(gpu)})` }}
      title={`${label}, ${CLASS_WORD[classOf(gpu)]}${isVariant ? ', hypothetical' : ''}`}
    >
      {letter !== undefined && <span className={styles.letter}>{letter}</span>}
      <span className={styles.name}>
        {shortName(gpu)}
        {isVariant && '*'}
      </span>
      {hasLabel && isVariant && <code className={styles.label}>{label.slice(label.indexOf(':') + 1)}</code>}
    </span>
  )
}
