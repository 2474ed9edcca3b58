import type { ReactNode } from 'react'
import styles from './charts.module.css'

export interface Stack {
  readonly key: string
  readonly label: ReactNode
  readonly words: string
  /** In words, at the bar's end. */
  readonly total: string
  readonly parts: readonly { readonly key: string; readonly word: string; readonly token: string; readonly value: number; readonly said: string }[]
}

/** One bar per config on one scale; its parts in a fixed order, so that the same colour stands at the same place. */
export function StackedBars({ label, stacks }: { readonly label: string; readonly stacks: readonly Stack[] }) {
  const longest = Math.max(0, ...stacks.map(({ parts }) => sumOf(parts)))
  const legend = new Map(stacks.flatMap(({ parts }) => parts.filter(({ value }) => value > 0).map((part) => [part.word, part.token] as const)))
  return (
    <figure className={styles.figure} aria-label={label}>
      <ul className={styles.stacks}>
        {stacks.map((stack) => (
          <li key={stack.key} className={styles.stack}>
            <span className={styles.stackLabel}>{stack.label}</span>
            <span className={styles.bar}>
              <svg width="100%" height="18" role="img" aria-label={`${stack.words}: ${stack.total}; ${saidOf(stack)}`}>
                {placed(stack.parts, longest).map(({ part, start, width }) => (
                  <rect key={part.key} x={`${start}%`} width={`${width}%`} height="18" fill={`var(--${part.token})`} stroke="var(--bg1)" strokeWidth="1">
                    <title>{`${part.word}: ${part.said}`}</title>
                  </rect>
                ))}
              </svg>
            </span>
            <span className={styles.stackTotal}>{stack.total}</span>
          </li>
        ))}
      </ul>
      <figcaption className={styles.legend}>
        {[...legend].map(([word, token]) => (
          <span key={word}>
            <span className={styles.swatch} style={{ background: `var(--${token})` }} aria-hidden="true" />
            {word}
          </span>
        ))}
      </figcaption>
    </figure>
  )
}

const sumOf = (parts: Stack['parts']) => parts.reduce((sum, { value }) => sum + value, 0)

const saidOf = ({ parts }: Stack) =>
  parts
    .filter(({ value }) => value > 0)
    .map(({ word, said }) => `${word} ${said}`)
    .join(', ')

function placed(parts: Stack['parts'], longest: number) {
  const share = (value: number) => (longest > 0 ? (value / longest) * 100 : 0)
  let start = 0
  return parts
    .filter(({ value }) => value > 0)
    .map((part) => {
      const width = share(part.value)
      const found = { part, start, width }
      start += width
      return found
    })
}
