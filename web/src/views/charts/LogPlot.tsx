import { useMemo, useState, type ReactNode } from 'react'
import styles from './charts.module.css'
import { logScale, type Scale } from './scales'
import { useWidth } from './useWidth'

export interface Dot {
  readonly key: string
  readonly x: number
  readonly y: number
  /** Radius in pixels. */
  readonly size: number
  readonly token: string
  readonly words: string
}

interface Props {
  readonly label: string
  readonly height: number
  readonly x: { readonly words: string; readonly domain: readonly [number, number]; readonly say: (value: number) => string }
  readonly y: { readonly words: string; readonly domain: readonly [number, number]; readonly say: (value: number) => string }
  readonly dots: readonly Dot[]
  /** Lines below the dots, given both scales. */
  readonly lines?: (x: Scale, y: Scale) => ReactNode
  readonly selected?: string | undefined
  readonly onDot?: (key: string) => void
}

const LEFT = 64
const BOTTOM = 34
const TOP = 8
const RIGHT = 12

/** Dots on two logarithmic axes. What is under the pointer is named below; a table beside it says the same in rows. */
export function LogPlot({ label, height, x, y, dots, lines, selected, onDot }: Props) {
  const [place, width] = useWidth<HTMLElement>(640)
  const [under, setUnder] = useState<string | null>(null)
  const [across, up] = useMemo(
    () => [logScale(x.domain, [LEFT, width - RIGHT]), logScale(y.domain, [height - BOTTOM, TOP])],
    [x.domain, y.domain, width, height],
  )
  const named = dots.find(({ key }) => key === (under ?? selected))
  // Large ones first, so that small ones stay in reach.
  const ordered = useMemo(() => [...dots].sort((a, b) => b.size - a.size), [dots])
  return (
    <figure ref={place} className={styles.figure} aria-label={label}>
      <svg width={width} height={height} role="img" aria-label={`${label}: ${dots.length} dots`}>
        {across.ticks.map((tick) => (
          <g key={tick}>
            <line x1={across.at(tick)} x2={across.at(tick)} y1={TOP} y2={height - BOTTOM} className={styles.grid} />
            <text x={across.at(tick)} y={height - BOTTOM + 14} textAnchor="middle" className={styles.tick}>
              {x.say(tick)}
            </text>
          </g>
        ))}
        {up.ticks.map((tick) => (
          <g key={tick}>
            <line x1={LEFT} x2={width - RIGHT} y1={up.at(tick)} y2={up.at(tick)} className={styles.grid} />
            <text x={LEFT - 8} y={up.at(tick) + 4} textAnchor="end" className={styles.tick}>
              {y.say(tick)}
            </text>
          </g>
        ))}
        {lines?.(across, up)}
        {ordered.map((dot) => (
          <circle
            key={dot.key}
            cx={across.at(dot.x)}
            cy={up.at(dot.y)}
            r={dot.size}
            fill={`var(--${dot.token})`}
            fillOpacity={dot.key === selected ? 1 : 0.72}
            stroke={dot.key === selected || dot.key === under ? 'var(--text1)' : 'var(--bg1)'}
            strokeWidth={dot.key === selected ? 2 : 1}
            className={onDot ? styles.pressable : undefined}
            onPointerEnter={() => setUnder(dot.key)}
            onPointerLeave={() => setUnder(null)}
            onClick={onDot && (() => onDot(dot.key))}
          >
            <title>{dot.words}</title>
          </circle>
        ))}
        <text x={width - RIGHT} y={height - 4} textAnchor="end" className={styles.axisWords}>
          {x.words}
        </text>
        <text x={LEFT} y={height - 4} className={styles.axisWords}>
          ↑ {y.words}
        </text>
      </svg>
      <figcaption className={styles.named}>{named?.words ?? ' '}</figcaption>
    </figure>
  )
}
