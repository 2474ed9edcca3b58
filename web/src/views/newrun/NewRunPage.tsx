import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { Fragment, useMemo, useState } from 'react'
import { api, type ApiGpu } from '../../lib/api'
import { bytes, counted, rate } from '../../lib/format'
import { CLASS_WORD, classOf, letter, shortName, type GpuClass } from '../../lib/gpus'
import { screens } from '../../lib/screens'
import { provenanceOf } from '../../lib/words'
import { DEFAULT_GPUS } from '../home/Example'
import { Imports } from '../home/Imports'
import { Problem } from '../Problem'
import { Provenance } from '../Provenance'
import { sortedRows, type SortKey } from '../sorting'
import { configText, positionOf, valueAt, withSetting, type Settings } from '../whatif/knobs'
import styles from './NewRunPage.module.css'
import { commandLine, partsOf, refinersOf, shownStock, simulatorChoices, VARIANT_KNOBS, withReplicas } from './variant'

const ORDER = Object.keys(CLASS_WORD) as GpuClass[]
const TIMELINE_CONFIGS = 8

const SORTS: Readonly<Record<string, { readonly words: string; readonly by: (gpu: ApiGpu) => SortKey }>> = {
  class: { words: 'class', by: () => null },
  dram: { words: 'DRAM bandwidth', by: ({ spec }) => spec.dram_bytes_per_s },
  tensor: { words: 'tensor rate', by: ({ spec }) => spec.bf16_flop_per_s },
  memory: { words: 'memory', by: ({ spec }) => spec.dram_bytes },
  year: { words: 'year', by: ({ spec }) => spec.year },
}

/** What will be simulated: a trace, GPUs, and GPUs that nobody has built. */
export function NewRunPage() {
  const search = useSearch({ from: '/new' })
  const navigate = useNavigate()
  const queries = useQueryClient()
  const traces = useQuery({ queryKey: ['traces'], queryFn: api.traces })
  const gpus = useQuery({ queryKey: ['gpus'], queryFn: api.gpus, staleTime: Infinity })
  const about = useQuery({ queryKey: ['about'], queryFn: api.about, staleTime: Infinity })
  const usable = (traces.data ?? []).filter((trace) => trace.status === 'complete' || trace.status === 'importing')
  const [traceChoice, setTraceChoice] = useState(search.trace)
  const traceId = traceChoice ?? usable[0]?.trace_id
  const details = useQuery({ queryKey: ['trace', traceId, 'details'], queryFn: () => screens.trace(traceId ?? ''), enabled: traceId !== undefined })
  const asked = search.gpu ?? DEFAULT_GPUS
  // Stock GPUs by their boxes, everything else as text: one order, that of the letters.
  const [chosen, setChosen] = useState<readonly string[]>(asked.filter((text) => !text.includes(':')))
  const [variants, setVariants] = useState(asked.filter((text) => text.includes(':')).join('\n'))
  const [simulator, setSimulator] = useState(search.sim ?? 'analytic')
  const typed = variants.split('\n').map((line) => line.trim()).filter((line) => line !== '')
  const configs = [...chosen, ...typed]
  const refiners = refinersOf(about.data?.simulators ?? [], simulator, details.data?.sass_tasks ?? null)
  const [refineChoice, setRefineChoice] = useState('')
  const refineWith = refiners.includes(refineChoice) ? refineChoice : ''
  const known = useMemo(() => new Map(gpus.data?.map((gpu) => [gpu.spec.gpu, gpu])), [gpus.data])
  const start = useMutation({
    mutationFn: () => api.startRun({ trace_id: traceId ?? '', gpus: configs, simulator, ...(refineWith === '' ? {} : { refine: { simulator: refineWith } }) }),
    onSuccess: async (runId) => {
      await queries.invalidateQueries({ queryKey: ['runs'] })
      await navigate({ to: '/runs/$runId', params: { runId } })
    },
  })
  const trace = usable.find((one) => one.trace_id === traceId)
  const names = new Set(chosen.map((text) => partsOf(text).gpu))
  const toggle = (gpu: string) => setChosen((now) => (names.has(gpu) ? now.filter((text) => partsOf(text).gpu !== gpu) : [...now, gpu]))
  const change = (index: number, text: string | null) => {
    if (index < chosen.length) setChosen((now) => now.flatMap((one, at) => (at !== index ? [one] : text === null ? [] : [text])))
    else setVariants(typed.flatMap((one, at) => (at !== index - chosen.length ? [one] : text === null ? [] : [text])).join('\n'))
  }
  const cli = commandLine(traceId ?? 'TRACE', configs, simulator, refineWith)
  const strangers = [...names].filter((gpu) => known.size > 0 && !known.has(gpu))
  return (
    <form
      className={styles.form}
      onSubmit={(event) => {
        event.preventDefault()
        start.mutate()
      }}
      onKeyDown={(event) => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && traceId !== undefined && configs.length > 0) start.mutate()
      }}
    >
      <h1>New run</h1>
      <Imports isQuiet />
      <div className={styles.columns}>
        <div className={styles.left}>
          <section className={`panel ${styles.panel}`}>
            <h2 id="trace-label">Trace</h2>
            {traces.error && <Problem error={traces.error} onRetry={() => void traces.refetch()} />}
            {traces.data && usable.length === 0 ? (
              <p>
                No trace is here yet. Drop one here, or <Link to="/">open the example</Link>.
              </p>
            ) : (
              <div className={styles.trace}>
                <select className="field" aria-labelledby="trace-label" value={traceId ?? ''} onChange={(event) => setTraceChoice(event.target.value)}>
                  {usable.map((one) => (
                    <option key={one.trace_id} value={one.trace_id}>
                      {one.name ?? one.trace_id}
                      {one.model ? ` · ${one.model}` : ''}
                    </option>
                  ))}
                </select>
                <Provenance kind={provenanceOf(trace?.provenance)} />
                {trace?.kernels != null && <span className={styles.hint}>{counted(trace.kernels, 'kernel')}</span>}
              </div>
            )}
          </section>
          {gpus.error && <Problem error={gpus.error} onRetry={() => void gpus.refetch()} />}
          <Picker gpus={gpus.data ?? []} names={names} onToggle={toggle} onNone={() => setChosen([])} />
          <section className={`panel ${styles.panel}`}>
            <h2>
              <label htmlFor="variants">GPUs that nobody has built</label>
            </h2>
            {gpus.data && <VariantBench gpus={gpus.data} onAdd={(text) => setVariants((now) => [now.trim(), text].filter(Boolean).join('\n'))} />}
            <p className={styles.hint}>
              Or written, one a line, as on the command line: <code>h100_sxm:dram_gbps=6000,sm=160</code>
            </p>
            <textarea id="variants" className={`field ${styles.variants}`} rows={2} spellCheck={false} value={variants} onChange={(event) => setVariants(event.target.value)} />
          </section>
        </div>
        <div className={styles.right}>
          <section className={`panel ${styles.panel}`} aria-labelledby="chosen-title">
            <h2 id="chosen-title">Chosen</h2>
            {configs.length === 0 ? <p className={styles.hint}>No GPU is chosen yet.</p> : <Chosen configs={configs} known={known} onChange={change} />}
            {configs.length > TIMELINE_CONFIGS && <p className={styles.hint}>The timeline shows {TIMELINE_CONFIGS} at a time.</p>}
          </section>
          <section className={`panel ${styles.panel}`}>
            <fieldset className={styles.simulators}>
              <legend>Simulator</legend>
              {simulatorChoices(about.data?.simulators ?? ['analytic'], details.data?.sass_tasks ?? null).map(({ name, why }) => (
                <label key={name} className={why === '' ? undefined : styles.impossible}>
                  <input type="radio" name="simulator" value={name} checked={simulator === name} disabled={why !== ''} onChange={() => setSimulator(name)} />
                  <span>
                    {name}
                    {name === 'roofline' && <span className={styles.hint}> the datasheet baseline</span>}
                    {why !== '' && <span className={styles.hint}> {why}</span>}
                  </span>
                </label>
              ))}
            </fieldset>
            <fieldset className={styles.simulators} data-testid="refine">
              <legend>Then refine with</legend>
              {refiners.length === 0 ? (
                <p className={styles.hint}>
                  {details.data?.sass_tasks === 0
                    ? 'Nothing: no kernel of this trace has its instructions. Import it together with the folder of SASS traces of the same job.'
                    : 'Nothing: only a fast simulator is refined, by one of instructions that is installed here.'}
                </p>
              ) : (
                ['', ...refiners].map((name) => (
                  <label key={name}>
                    <input type="radio" name="refine" value={name} checked={refineWith === name} onChange={() => setRefineChoice(name)} />
                    <span>
                      {name === '' ? 'nothing' : name}
                      {name !== '' && <span className={styles.hint}> the kernels that make most of the uncertainty, once the first answer is out</span>}
                    </span>
                  </label>
                ))
              )}
            </fieldset>
          </section>
          <section className={`panel ${styles.panel}`}>
            <div className={styles.head}>
              <h2>From a shell</h2>
              <Copy text={cli} />
            </div>
            <code className={styles.cli}>
              {cli.split(/ (?=--)/).map((argument, place) => (
                <Fragment key={place}>
                  {place > 0 && ' '}
                  <span>{argument}</span>
                </Fragment>
              ))}
            </code>
          </section>
          <button className={`button primary ${styles.run}`} disabled={traceId === undefined || configs.length === 0 || start.isPending}>
            {start.isPending ? 'Starting…' : `Run on ${counted(configs.length, 'GPU')}`}
          </button>
          {start.error && <Problem error={start.error} />}
          {strangers.length > 0 && <Problem error={new Error(`Not known here: ${strangers.join(', ')}`)} />}
        </div>
      </div>
    </form>
  )
}

// --- picker -----------------------------------------------------------------------------------------------------------

interface PickerProps {
  readonly gpus: readonly ApiGpu[]
  readonly names: ReadonlySet<string>
  readonly onToggle: (gpu: string) => void
  readonly onNone: () => void
}

function Picker({ gpus, names, onToggle, onNone }: PickerProps) {
  const [filter, setFilter] = useState('')
  const [sort, setSort] = useState('class')
  const shown = gpus.filter(({ spec, aliases }) => `${spec.name} ${spec.gpu} ${spec.architecture} ${aliases.join(' ')}`.toLowerCase().includes(filter.toLowerCase()))
  const by = SORTS[sort]?.by
  const groups: readonly { readonly title: string; readonly token: string; readonly gpus: readonly ApiGpu[] }[] =
    sort === 'class' || by === undefined
      ? ORDER.map((name) => ({ title: CLASS_WORD[name], token: name, gpus: shown.filter(({ spec }) => classOf(spec) === name) }))
      : [{ title: `By ${SORTS[sort]?.words ?? ''}`, token: 'other', gpus: sortedRows(shown, by, true) }]
  return (
    <section className={`panel ${styles.panel}`} aria-labelledby="gpus-label">
      <div className={styles.head}>
        <h2 id="gpus-label">GPUs</h2>
        <input id="gpu-filter" aria-label="Filter GPUs" className="field" type="search" placeholder="Filter" value={filter} onChange={(event) => setFilter(event.target.value)} />
        <label className={styles.sort}>
          sort
          <select className="field" value={sort} onChange={(event) => setSort(event.target.value)}>
            {Object.entries(SORTS).map(([name, { words }]) => (
              <option key={name} value={name}>
                {words}
              </option>
            ))}
          </select>
        </label>
        <span className={styles.hint}>{counted(names.size, 'GPU')} chosen</span>
        <button type="button" className="button quiet" onClick={onNone}>
          None
        </button>
      </div>
      {shown.length === 0 && gpus.length > 0 && <p className={styles.hint}>No GPU matches “{filter}”.</p>}
      {groups.map((group) =>
        group.gpus.length === 0 ? null : (
          <fieldset key={group.title} className={styles.group}>
            <legend>
              <span className={styles.swatch} style={{ background: `var(--${group.token})` }} aria-hidden="true" />
              {group.title}
            </legend>
            <ul className={styles.grid}>
              {group.gpus.map(({ spec }) => (
                <li key={spec.gpu}>
                  <label className={styles.gpu} style={{ borderLeftColor: `var(--${classOf(spec)})` }}>
                    <input type="checkbox" checked={names.has(spec.gpu)} onChange={() => onToggle(spec.gpu)} />
                    <span className={styles.gpuName}>{shortName(spec)}</span>
                    <span className={styles.specs}>
                      <span>
                        {spec.sm_count} {spec.vendor === 'amd' ? 'CU' : 'SM'}
                      </span>
                      <span>{rate(spec.dram_bytes_per_s, 'B')}</span>
                      <span>{bytes(spec.dram_bytes)}</span>
                      <span>{rate(spec.bf16_flop_per_s, 'FLOP')}</span>
                    </span>
                  </label>
                </li>
              ))}
            </ul>
          </fieldset>
        ),
      )}
    </section>
  )
}

// --- chosen -----------------------------------------------------------------------------------------------------------

interface ChosenProps {
  readonly configs: readonly string[]
  readonly known: ReadonlyMap<string, ApiGpu>
  readonly onChange: (index: number, text: string | null) => void
}

function Chosen({ configs, known, onChange }: ChosenProps) {
  return (
    <ol className={styles.chosen}>
      {configs.map((text, index) => {
        const { gpu, overrides, replicas } = partsOf(text)
        const spec = known.get(gpu)?.spec
        return (
          <li key={`${index} ${gpu}`}>
            <span className={styles.letter}>{letter(index)}</span>
            <span className={styles.chosenName} style={{ borderLeftColor: `var(--${overrides !== '' ? 'hypothetical' : spec ? classOf(spec) : 'other'})` }}>
              {spec ? shortName(spec) : gpu}
              {overrides !== '' && (
                <>
                  * <code>{overrides}</code>
                </>
              )}
            </span>
            <label className={styles.replicas}>
              ×
              <input
                className="field"
                type="number"
                min={1}
                max={1024}
                value={replicas}
                aria-label={`Workers that share ${text}`}
                title="Workers that may share it; no answer depends on it"
                onChange={(event) => onChange(index, withReplicas(text, Math.max(1, Math.round(Number(event.target.value)) || 1)))}
              />
            </label>
            <button type="button" className="button quiet" aria-label={`Leave out ${text}`} onClick={() => onChange(index, null)}>
              ✕
            </button>
          </li>
        )
      })}
    </ol>
  )
}

// --- variants ---------------------------------------------------------------------------------------------------------

function VariantBench({ gpus, onAdd }: { readonly gpus: readonly ApiGpu[]; readonly onAdd: (text: string) => void }) {
  const [gpu, setGpu] = useState('h100_sxm')
  const [settings, setSettings] = useState<Settings>({})
  const spec = gpus.find((one) => one.spec.gpu === gpu)?.spec ?? gpus[0]?.spec
  if (spec === undefined) return null
  const text = configText(spec.gpu, settings)
  return (
    <div className={styles.bench}>
      <label className={styles.benchBase}>
        From
        <select
          className="field"
          value={spec.gpu}
          onChange={(event) => {
            setGpu(event.target.value)
            setSettings({})
          }}
        >
          {gpus.map((one) => (
            <option key={one.spec.gpu} value={one.spec.gpu}>
              {shortName(one.spec)}
            </option>
          ))}
        </select>
      </label>
      {VARIANT_KNOBS.map((knob) => {
        const stock = knob.stock(spec)
        if (stock <= 0) return null
        const turned = { name: knob.name, stock }
        const value = settings[knob.name] ?? stock
        return (
          <div key={knob.name} className={styles.knob}>
            <span>{knob.words}</span>
            <span className={styles.slide}>
              <input
                type="range"
                min={0}
                max={1}
                step={0.005}
                aria-label={knob.words}
                aria-valuetext={`${shownStock(value)} ${knob.unit}`}
                value={positionOf(value, stock)}
                onChange={(event) => setSettings((now) => withSetting(now, turned, valueAt(Number(event.target.value), turned)))}
                onDoubleClick={() => setSettings((now) => withSetting(now, turned, stock))}
              />
              <span className={styles.ghost} aria-hidden="true" />
            </span>
            <input
              className="field"
              inputMode="decimal"
              aria-label={`${knob.words}, typed`}
              key={value}
              defaultValue={value === stock ? shownStock(stock) : String(value)}
              onBlur={(event) => {
                const number = Number(event.target.value)
                if (Number.isFinite(number) && number > 0) setSettings((now) => withSetting(now, turned, number))
              }}
              onKeyDown={(event) => {
                if (event.key !== 'Enter' || event.ctrlKey) return
                event.preventDefault()
                event.currentTarget.blur()
              }}
            />
            <span className={styles.hint}>{knob.unit}</span>
          </div>
        )
      })}
      <div className={styles.add}>
        <code>{text}</code>
        <button
          type="button"
          className="button"
          disabled={Object.keys(settings).length === 0}
          onClick={() => {
            onAdd(text)
            setSettings({})
          }}
        >
          Add
        </button>
      </div>
    </div>
  )
}

function Copy({ text }: { readonly text: string }) {
  const [isDone, setDone] = useState(false)
  return (
    <button
      type="button"
      className="button quiet"
      onClick={() => {
        void navigator.clipboard.writeText(text).then(() => setDone(true))
        setTimeout(() => setDone(false), 2000)
      }}
    >
      {isDone ? 'Copied' : 'Copy'}
    </button>
  )
}
