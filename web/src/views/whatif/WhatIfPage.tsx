import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { getRouteApi, useNavigate } from '@tanstack/react-router'
import { memo, useEffect, useMemo, useRef, useState, type CSSProperties } from 'react'
import { api } from '../../lib/api'
import { boundShown, familyShown } from '../../lib/families'
import { digits, MISSING, percent, range, signedPercent, time, timeUnit } from '../../lib/format'
import { letter } from '../../lib/gpus'
import { screens, type ApiEstimate, type Sweep, type SweptKnob, type WhatIfAnswer } from '../../lib/screens'
import { ms, ratio } from '../../lib/units'
import { infeasible, requestedConfigs } from '../../store/run'
import { GpuChip } from '../GpuChip'
import { Problem } from '../Problem'
import { useRun } from '../run/runContext'
import { Empty, Loading } from '../States'
import { BOUND_ORDER, configText, parseSettings, positionOf, settingsText, valueAt, withSetting, type Settings } from './knobs'
import styles from './WhatIfPage.module.css'

const route = getRouteApi('/runs/$runId/whatif')
const ADDRESS_AFTER_MS = 250
const METRIC_WORDS = { tpot: 'TPOT', ttft: 'TTFT', kernel_time: 'Kernel time' } as const

/** A chip that nobody has built: what moves, by how much, and what limits it next. */
export function WhatIfPage() {
  const { run } = useRun()
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const configs = requestedConfigs(run)
  const wanted = configs.find(({ spec }) => spec.config_id === search.base || spec.label === search.base)
  const base = wanted ?? configs.find((config) => infeasible(config) === '') ?? configs[0]
  const isWhole = run.trace.status === 'complete'
  const sweep = useQuery({
    queryKey: ['sweep', run.trace.traceId, base?.spec.label],
    queryFn: () => screens.sweep(run.trace.traceId, base?.spec.label ?? ''),
    enabled: isWhole && base !== undefined,
    staleTime: Infinity,
  })
  if (!isWhole || base === undefined) {
    return (
      <div className={styles.page}>
        <Empty>A what-if re-predicts a whole trace: it opens as soon as this one has ended.</Empty>
      </div>
    )
  }
  const index = configs.indexOf(base)
  return (
    <div className={styles.page}>
      <div className={styles.base}>
        <label>
          Base
          <select
            className="field"
            value={base.spec.config_id}
            onChange={(event) => void navigate({ search: (before) => ({ ...before, base: event.target.value, set: undefined }), replace: true })}
          >
            {configs.map((config, place) => (
              <option key={config.spec.config_id} value={config.spec.config_id}>
                {letter(place)} {config.spec.label}
              </option>
            ))}
          </select>
        </label>
        <GpuChip gpu={base.spec.gpu} label={base.spec.label} letter={letter(index)} hasLabel />
      </div>
      {sweep.error && <Problem error={sweep.error} onRetry={() => void sweep.refetch()} />}
      {sweep.isPending && <Loading words="Turning every knob once" rows={12} height={520} />}
      {sweep.data && <Bench key={base.spec.config_id} sweep={sweep.data} label={base.spec.label} traceId={run.trace.traceId} simulator={run.simulator} />}
    </div>
  )
}

interface BenchProps {
  readonly sweep: Sweep
  readonly label: string
  readonly traceId: string
  readonly simulator: string
}

function Bench({ sweep, label, traceId, simulator }: BenchProps) {
  const [settings, change] = useSettings()
  const config = configText(label, settings)
  const isStock = Object.keys(settings).length === 0
  const { answer, elapsedMs, isAsking, error } = useNewest(traceId, isStock ? null : config)
  const now = isStock ? null : answer
  const go = useNavigate()
  const queries = useQueryClient()
  const keep = useMutation({
    mutationFn: () => api.startRun({ trace_id: traceId, gpus: isStock ? [label] : [label, config], simulator: simulator || 'analytic' }),
    onSuccess: async (runId) => {
      await queries.invalidateQueries({ queryKey: ['runs'] })
      await go({ to: '/runs/$runId', params: { runId } })
    },
  })
  const strongest = Math.max(...sweep.knobs.map(({ elasticity }) => Math.abs(elasticity ?? 0)), 1e-9)
  return (
    <>
      <Answer sweep={sweep} now={now} isAsking={isAsking} elapsedMs={elapsedMs} />
      {error && <Problem error={error} />}
      <div className={styles.knobs}>
        {sweep.knobs.map((knob) => (
          <KnobRow
            key={knob.name}
            knob={knob}
            value={settings[knob.name] ?? knob.stock}
            strongest={strongest}
            onValue={(value) => change(withSetting(settings, knob, value))}
          />
        ))}
      </div>
      <Legend />
      <div className={styles.keep}>
        <code className={styles.config} data-testid="config">{config}</code>
        <button type="button" className="button" disabled={isStock} onClick={() => change({})}>
          Back to stock
        </button>
        <button type="button" className="button primary" disabled={isStock || keep.isPending} onClick={() => keep.mutate()}>
          {keep.isPending ? 'Starting…' : 'Keep as run'}
        </button>
      </div>
      {keep.error && <Problem error={keep.error} />}
    </>
  )
}

// --- the answer -------------------------------------------------------------------------------------------------------

function Answer(props: { readonly sweep: Sweep; readonly now: WhatIfAnswer | null; readonly isAsking: boolean; readonly elapsedMs: number | null }) {
  const { sweep, now, isAsking, elapsedMs } = props
  const stock = sweep.base
  const estimate = now === null ? null : estimateOf(now, sweep.metric)
  const unit = timeUnit([ms(stock.value_ms)])
  const shown: ApiEstimate = estimate ?? { value: stock.value_ms, p10: stock.p10_ms, p90: stock.p90_ms }
  const change = shown.value / stock.value_ms
  return (
    <section className={`panel ${styles.answer}`} aria-live="polite" aria-label="Answer" aria-busy={isAsking}>
      <div>
        <h2>{METRIC_WORDS[sweep.metric]}</h2>
        {now?.infeasible ? (
          <p className={styles.infeasible}>INFEASIBLE: {now.infeasible}</p>
        ) : (
          <p className={styles.value} data-testid="answer">
            <span className={styles.was}>{time(ms(stock.value_ms), unit)}</span>
            <span aria-hidden="true">→</span>
            {time(ms(shown.value), unit)} {unit}
            <span className={styles.range}>{range(ms(shown.p10), ms(shown.p90), unit)}</span>
            <span className={styles.ratio}>{digits(change)}×</span>
          </p>
        )}
      </div>
      <Ribbon bounds={now?.bound_by ?? stock.bound_by} label="What kernels wait for" height={14} />
      <p className={styles.took}>
        {isAsking ? <span className={styles.asking} /> : null}
        {elapsedMs === null ? 'stock' : `re-predicted in ${Math.round(elapsedMs)} ms`}
      </p>
    </section>
  )
}

function estimateOf(answer: WhatIfAnswer, metric: Sweep['metric']): ApiEstimate | null {
  if (metric === 'tpot') return answer.tpot_ms ?? null
  if (metric === 'ttft') return answer.ttft_ms ?? null
  if (answer.kernel_time_ms == null || answer.kernel_time_interval_ms == null) return null
  return { value: answer.kernel_time_ms, ...answer.kernel_time_interval_ms }
}

/** Shares of kernel time by what it waits for, always in the same order. */
function Ribbon({ bounds, label, height }: { readonly bounds: Readonly<Record<string, number>>; readonly label: string; readonly height: number }) {
  const shares = BOUND_ORDER.map((name) => ({ name, share: bounds[name] ?? 0 })).filter(({ share }) => share > 0)
  return (
    <svg
      className={styles.ribbon}
      width="100%"
      height={height}
      role="img"
      aria-label={`${label}: ${shares.map(({ name, share }) => `${boundShown(name).word} ${percent(ratio(share))}`).join(', ')}`}
    >
      {shares.map(({ name, share }, index) => {
        const start = shares.slice(0, index).reduce((sum, one) => sum + one.share, 0)
        return (
          <rect key={name} x={`${start * 100}%`} width={`${share * 100}%`} height={height} fill={`var(--${boundShown(name).token})`}>
            <title>{`${boundShown(name).word} ${percent(ratio(share))}`}</title>
          </rect>
        )
      })}
    </svg>
  )
}

function Legend() {
  return (
    <p className={styles.legend}>
      Under each slider: what the kernels would wait for, from a quarter of stock to four times it.
      {BOUND_ORDER.map((name) => (
        <span key={name}>
          <span className={styles.swatch} style={{ background: `var(--${boundShown(name).token})` }} aria-hidden="true" />
          {boundShown(name).word}
        </span>
      ))}
    </p>
  )
}

// --- knobs ------------------------------------------------------------------------------------------------------------

interface KnobProps {
  readonly knob: SweptKnob
  readonly value: number
  readonly strongest: number
  readonly onValue: (value: number) => void
}

function KnobRow({ knob, value, strongest, onValue }: KnobProps) {
  const [typed, setTyped] = useState<string | null>(null)
  const at = knob.points.length > 0 ? positionOf(value, knob.stock) : 0.5
  const take = () => {
    const number = Number(typed)
    if (typed !== null && Number.isFinite(number) && number > 0) onValue(number)
    setTyped(null)
  }
  const isTurned = value !== knob.stock
  if (knob.points.length === 0) {
    return (
      <section className={styles.knob} aria-label={knob.words}>
        <h3>{knob.words}</h3>
        <p className={styles.none}>{knob.sentence}</p>
      </section>
    )
  }
  return (
    <section className={styles.knob} aria-label={knob.words}>
      <h3>{knob.words}</h3>
      <span className={styles.stock} title="stock">
        {shownValue(knob.stock)}
      </span>
      <span className={styles.slider} style={{ '--at': `${at * 100}%` } as CSSProperties}>
        <input
          type="range"
          min={0}
          max={1}
          step={0.005}
          value={at}
          aria-label={knob.words}
          aria-valuetext={`${shownValue(value)} ${knob.unit}`.trim()}
          onChange={(event) => onValue(valueAt(Number(event.target.value), knob))}
          onDoubleClick={() => onValue(knob.stock)}
        />
        <span className={styles.ghost} aria-hidden="true" />
        <KnobRibbon knob={knob} at={at} />
      </span>
      <span className={styles.typed}>
        <input
          className="field"
          inputMode="decimal"
          aria-label={`${knob.words}, typed`}
          value={typed ?? (isTurned ? String(Number(value.toPrecision(6))) : shownValue(value))}
          onChange={(event) => setTyped(event.target.value)}
          onBlur={take}
          onKeyDown={(event) => {
            if (event.key === 'Enter') take()
            if (event.key === 'Escape') setTyped(null)
          }}
        />
        <span>{knob.unit}</span>
      </span>
      <span className={styles.elasticity} title="Change of the answer for 10 % more of this">
        <span className={styles.tornado}>
          <span style={{ width: `${(Math.abs(knob.elasticity ?? 0) / strongest) * 100}%` }} aria-hidden="true" />
        </span>
        {knob.elasticity === null ? MISSING : signedPercent(ratio(knob.elasticity))}
      </span>
      <p className={styles.sentence}>{sentenceOf(knob)}</p>
    </section>
  )
}

/** The server's sentence with the family's word as the page writes it. */
const sentenceOf = (knob: SweptKnob): string =>
  knob.next === null ? knob.sentence : `next: ${knob.sentence.replace(knob.next.family, familyShown(knob.next.family).word)}`

const shownValue = (value: number): string => digits(value)

/** Nine columns, each the bounds at that value: where a colour flips, the bottleneck moves. */
const KnobRibbon = memo(function KnobRibbon({ knob, at }: { readonly knob: SweptKnob; readonly at: number }) {
  const height = 20
  const columns = useMemo(
    () =>
      knob.points.map(({ bound_by }) => {
        let below = 0
        return BOUND_ORDER.map((name) => {
          const share = bound_by[name] ?? 0
          const found = { name, start: below, share }
          below += share
          return found
        })
      }),
    [knob],
  )
  const width = 100 / columns.length
  return (
    <svg className={styles.columns} width="100%" height={height} role="img" aria-label={`${knob.words} from a quarter to four times stock: ${knob.sentence}`}>
      {columns.map((column, index) =>
        column.map(({ name, start, share }) => (
          <rect
            key={`${index} ${name}`}
            x={`${index * width}%`}
            width={`${width + 0.05}%`}
            y={start * height}
            height={share * height}
            fill={`var(--${boundShown(name).token})`}
            opacity={0.85}
          />
        )),
      )}
      <line x1={`${at * 100}%`} x2={`${at * 100}%`} y1="0" y2={height} stroke="var(--text1)" strokeWidth="2" />
    </svg>
  )
})

// --- state ------------------------------------------------------------------------------------------------------------

/** What differs from stock: shown at once, in the address a moment later. */
function useSettings(): readonly [Settings, (settings: Settings) => void] {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const [settings, setSettings] = useState<Settings>(() => parseSettings(search.set))
  const timer = useRef<number | undefined>(undefined)
  useEffect(() => () => window.clearTimeout(timer.current), [])
  const change = (next: Settings) => {
    setSettings(next)
    window.clearTimeout(timer.current)
    timer.current = window.setTimeout(() => {
      void navigate({ search: (before) => ({ ...before, set: settingsText(next) }), replace: true })
    }, ADDRESS_AFTER_MS)
  }
  return [settings, change]
}

interface Newest {
  readonly answer: WhatIfAnswer | null
  readonly elapsedMs: number | null
  readonly isAsking: boolean
  readonly error: Error | null
}

/** One question in flight; while it is, only the newest of those that follow is kept. */
function useNewest(traceId: string, config: string | null): Newest {
  const [state, setState] = useState<Newest>({ answer: null, elapsedMs: null, isAsking: false, error: null })
  const wanted = useRef<string | null>(null)
  const isBusy = useRef(false)
  useEffect(() => {
    wanted.current = config
    if (config === null || isBusy.current) return
    const ask = async () => {
      isBusy.current = true
      for (let asked = wanted.current; asked !== null; asked = wanted.current) {
        setState((now) => ({ ...now, isAsking: true }))
        const began = performance.now()
        try {
          const answer = await screens.whatIf(traceId, asked)
          setState({ answer, elapsedMs: performance.now() - began, isAsking: false, error: null })
        } catch (error) {
          setState((now) => ({ ...now, isAsking: false, error: error instanceof Error ? error : new Error(String(error)) }))
        }
        if (wanted.current === asked) break
      }
      isBusy.current = false
    }
    void ask()
  }, [traceId, config])
  return config === null ? { ...state, answer: null, elapsedMs: null, error: null } : state
}
