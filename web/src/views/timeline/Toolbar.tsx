import { useEffect, useRef } from 'react'
import { ALIGNMENTS, COLOURS, type Alignment, type Colour, type ConfigSaid, type FromTimeline, type ToTimeline, type View } from '../../canvas/protocol'
import { BOUNDS, ERRORS } from '../../canvas/results'
import { boundShown } from '../../lib/families'
import { counted, digits } from '../../lib/format'
import styles from './Toolbar.module.css'

const ALIGN_WORDS: Readonly<Record<Alignment, string>> = { time: 'time', step: 'step', kernel: 'kernel', progress: 'progress' }
const COLOUR_WORDS: Readonly<Record<Colour, string>> = { family: 'family', bound: 'bound by', error: 'error' }
const ERROR_WORDS = ['−20 %', '−10 %', '−5 %', '0', '+5 %', '+10 %', '+20 %', 'not measured'] as const

interface Props {
  readonly view: Partial<View>
  readonly status: Extract<FromTimeline, { readonly op: 'status' }> | null
  readonly configs: readonly ConfigSaid[]
  readonly hasTwin: boolean
  readonly onTwin: () => void
  readonly send: (said: ToTimeline) => void
}

/** What the lanes are lined up by, coloured by, searched for and compared with. */
export function Toolbar({ view, status, configs, hasTwin, onTwin, send }: Props) {
  const change = (changes: Partial<View>) => send({ op: 'view', view: changes, isJump: false })
  return (
    <div className={styles.bar} role="toolbar" aria-label="Timeline">
      <Choice label="Align by" value={view.align ?? 'time'} choices={ALIGNMENTS} words={ALIGN_WORDS} onChange={(align) => change({ align })} />
      <Choice label="Colour by" value={view.colour ?? 'family'} choices={COLOURS} words={COLOUR_WORDS} onChange={(colour) => change({ colour })} />
      <label className={styles.choice}>
        <span>Baseline</span>
        <select className="field" value={view.baseline ?? configs[0]?.letter} onChange={(event) => change({ baseline: event.target.value })}>
          {configs.map(({ letter, name }) => (
            <option key={letter} value={letter}>
              {letter} {name}
            </option>
          ))}
        </select>
      </label>
      <Find query={view.query ?? ''} hits={status?.hits ?? null} onChange={(query) => change({ query })} send={send} />
      <span className={styles.scale}>{status === null ? '' : scaleWords(status.perPixel)}</span>
      <button type="button" className="button quiet" onClick={() => send({ op: 'command', command: 'fit-all' })}>
        Fit all
      </button>
      <button type="button" className="button quiet" aria-pressed={hasTwin} onClick={onTwin}>
        Table
      </button>
      <Legend colour={view.colour ?? 'family'} />
    </div>
  )
}

const scaleWords = (perPixel: number): string =>
  perPixel > 1 ? `1 px = ${counted(Math.round(perPixel), 'launch', 'launches')}` : perPixel > 0 ? `1 launch = ${digits(1 / perPixel)} px` : ''

function Choice<Value extends string>({
  label,
  value,
  choices,
  words,
  onChange,
}: {
  readonly label: string
  readonly value: Value
  readonly choices: readonly Value[]
  readonly words: Readonly<Record<Value, string>>
  readonly onChange: (value: Value) => void
}) {
  return (
    <label className={styles.choice}>
      <span>{label}</span>
      <select className="field" value={value} onChange={(event) => onChange(event.target.value as Value)}>
        {choices.map((one) => (
          <option key={one} value={one}>
            {words[one]}
          </option>
        ))}
      </select>
    </label>
  )
}

function Find({
  query,
  hits,
  onChange,
  send,
}: {
  readonly query: string
  readonly hits: number | null
  readonly onChange: (query: string) => void
  readonly send: (said: ToTimeline) => void
}) {
  const field = useRef<HTMLInputElement>(null)
  useEffect(() => {
    // What others look for is shown, what is being typed is not disturbed.
    if (field.current !== null && document.activeElement !== field.current) field.current.value = query
  }, [query])
  useEffect(() => {
    const focus = () => field.current?.focus()
    window.addEventListener('cascade:find', focus)
    return () => window.removeEventListener('cascade:find', focus)
  }, [])
  return (
    <span className={styles.find}>
      <input
        ref={field}
        className="field"
        type="search"
        aria-label="Find kernels"
        placeholder="Find kernels  /"
        defaultValue={query}
        onChange={(event) => onChange(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === 'Enter') send({ op: 'command', command: event.shiftKey ? 'previous-hit' : 'next-hit' })
          if (event.key === 'Escape' && field.current !== null) {
            field.current.value = ''
            field.current.blur()
            onChange('')
          }
        }}
      />
      <span className={styles.hits}>{hits === null ? '' : counted(hits, 'hit')}</span>
    </span>
  )
}

/** Bounds and errors need saying; families are named on the launches themselves. */
function Legend({ colour }: { readonly colour: Colour }) {
  if (colour === 'family') return null
  const rows = colour === 'bound' ? BOUNDS.map((bound) => boundShown(bound)) : ERRORS.map((token, at) => ({ token, word: ERROR_WORDS[at] ?? '' }))
  return (
    <ul className={styles.legend} aria-label="Colours">
      {rows.map(({ token, word }) => (
        <li key={token}>
          <span className={styles.swatch} style={{ background: `var(--${token})` }} aria-hidden="true" />
          {word}
        </li>
      ))}
    </ul>
  )
}
