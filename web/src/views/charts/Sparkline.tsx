interface Props {
  readonly values: readonly number[]
  readonly words: string
  readonly color?: string
}

const [WIDTH, HEIGHT] = [72, 16]

/** A shape at the size of a word: bars from nought. */
export function Sparkline({ values, words, color = 'text3' }: Props) {
  const top = Math.max(...values, 0)
  if (top <= 0) return null
  const step = WIDTH / values.length
  const path = values
    .map((value, index) => (value > 0 ? `M${(index * step).toFixed(1)} ${HEIGHT}v${(-Math.max(1, (value / top) * HEIGHT)).toFixed(1)}` : ''))
    .join('')
  return (
    <svg width={WIDTH} height={HEIGHT} role="img" aria-label={words}>
      <path d={path} stroke={`var(--${color})`} strokeWidth={Math.max(1, step - 0.4)} fill="none" transform={`translate(${step / 2} 0)`} />
    </svg>
  )
}
