import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { useState } from 'react'
import { api, type ApiGpu } from '../../lib/api'
import { bytes, counted, rate } from '../../lib/format'
import { CLASS_WORD, classOf, shortName, type GpuClass } from '../../lib/gpus'
import { provenanceOf } from '../../lib/words'
import { DEFAULT_GPUS } from '../home/Example'
import styles from './NewRunPage.module.css'
import { Problem } from '../Problem'
import { Provenance } from '../Provenance'

const ORDER = Object.keys(CLASS_WORD) as GpuClass[]

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
  const known = new Set(gpus.data?.map(({ spec }) => spec.gpu))
  const asked = search.gpu ?? DEFAULT_GPUS
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(asked.filter((text) => !text.includes(':'))))
  const [variants, setVariants] = useState(asked.filter((text) => text.includes(':')).join('\n'))
  const [simulator, setSimulator] = useState('analytic')
  const [filter, setFilter] = useState('')
  const typed = variants.split('\n').map((line) => line.trim()).filter((line) => line !== '')
  const configs = [...(gpus.data ?? []).map(({ spec }) => spec.gpu).filter((gpu) => chosen.has(gpu)), ...typed]
  const start = useMutation({
    mutationFn: () => api.startRun({ trace_id: traceId ?? '', gpus: configs, simulator }),
    onSuccess: async (runId) => {
      await queries.invalidateQueries({ queryKey: ['runs'] })
      await navigate({ to: '/runs/$runId', params: { runId } })
    },
  })
  const toggle = (gpu: string) =>
    setChosen((now) => {
      const next = new Set(now)
      if (!next.delete(gpu)) next.add(gpu)
      return next
    })
  const trace = usable.find((one) => one.trace_id === traceId)
  const shown = (gpus.data ?? []).filter(({ spec }) => `${spec.name} ${spec.gpu} ${spec.architecture}`.toLowerCase().includes(filter.toLowerCase()))
  const cli = ['.venv/bin/cascade run', traceId ?? 'TRACE', ...configs.map((config) => `--gpu ${shellWord(config)}`), ...(simulator === 'analytic' ? [] : [`--simulator ${simulator}`])].join(' ')
  return (
    <form
      className={styles.form}
      onSubmit={(event) => {
        event.preventDefault()
        start.mutate()
      }}
    >
      <h1>New run</h1>
      <section className={`panel ${styles.panel}`}>
        <h2 id="trace-label">Trace</h2>
        {traces.error && <Problem error={traces.error} onRetry={() => void traces.refetch()} />}
        {traces.data && usable.length === 0 ? (
          <p>
            No trace is here yet. <Link to="/">Import one</Link> or open the example there.
          </p>
        ) : (
          <div className={styles.trace}>
            <select
              className="field"
              aria-labelledby="trace-label"
              value={traceId ?? ''}
              onChange={(event) => setTraceChoice(event.target.value)}
            >
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

      <section className={`panel ${styles.panel}`} aria-labelledby="gpus-label">
        <div className={styles.head}>
          <h2 id="gpus-label">GPUs</h2>
          <label className="visually-hidden" htmlFor="gpu-filter">
            Filter GPUs
          </label>
          <input id="gpu-filter" className="field" type="search" placeholder="Filter" value={filter} onChange={(event) => setFilter(event.target.value)} />
          <span className={styles.hint}>{counted(chosen.size, 'GPU')} chosen</span>
          <button type="button" className="button quiet" onClick={() => setChosen(new Set())}>
            None
          </button>
        </div>
        {gpus.error && <Problem error={gpus.error} onRetry={() => void gpus.refetch()} />}
        {ORDER.map((name) => (
          <GpuClassGroup key={name} name={name} gpus={shown.filter(({ spec }) => classOf(spec) === name)} chosen={chosen} onToggle={toggle} />
        ))}
      </section>

      <section className={`panel ${styles.panel}`}>
        <h2>
          <label htmlFor="variants">GPUs that nobody has built</label>
        </h2>
        <p className={styles.hint}>
          One a line, as on the command line: a GPU, a colon, and what differs. For example{' '}
          <code>h100_sxm:dram_gbps=6000,sm=160</code>
        </p>
        <textarea
          id="variants"
          className={`field ${styles.variants}`}
          rows={3}
          spellCheck={false}
          value={variants}
          onChange={(event) => setVariants(event.target.value)}
        />
        <fieldset className={styles.simulators}>
          <legend>Simulator</legend>
          {(about.data?.simulators ?? ['analytic']).map((name) => (
            <label key={name}>
              <input type="radio" name="simulator" value={name} checked={simulator === name} onChange={() => setSimulator(name)} />
              {name}
              {name === 'roofline' && <span className={styles.hint}> the datasheet baseline</span>}
            </label>
          ))}
        </fieldset>
      </section>

      <div className={styles.foot}>
        <code className={styles.cli} title="The same from a shell">
          {cli}
        </code>
        <button className="button primary" disabled={traceId === undefined || configs.length === 0 || start.isPending}>
          {start.isPending ? 'Starting…' : `Run on ${counted(configs.length, 'GPU')}`}
        </button>
      </div>
      {start.error && <Problem error={start.error} />}
      {known.size > 0 && [...chosen].some((gpu) => !known.has(gpu)) && (
        <Problem error={new Error(`Not known here: ${[...chosen].filter((gpu) => !known.has(gpu)).join(', ')}`)} />
      )}
    </form>
  )
}

function GpuClassGroup({
  name,
  gpus,
  chosen,
  onToggle,
}: {
  readonly name: GpuClass
  readonly gpus: readonly ApiGpu[]
  readonly chosen: ReadonlySet<string>
  readonly onToggle: (gpu: string) => void
}) {
  if (gpus.length === 0) return null
  return (
    <fieldset className={styles.group}>
      <legend>
        <span className={styles.swatch} style={{ background: `var(--${name})` }} aria-hidden="true" />
        {CLASS_WORD[name]}
      </legend>
      <ul className={styles.grid}>
        {gpus.map(({ spec }) => (
          <li key={spec.gpu}>
            <label className={styles.gpu}>
              <input type="checkbox" checked={chosen.has(spec.gpu)} onChange={() => onToggle(spec.gpu)} />
              <span className={styles.gpuName}>{shortName(spec)}</span>
              <span className={styles.specs}>
                <span>{spec.sm_count} {spec.vendor === 'amd' ? 'CU' : 'SM'}</span>
                <span>{rate(spec.dram_bytes_per_s, 'B')}</span>
                <span>{bytes(spec.dram_bytes)}</span>
                <span>{rate(spec.bf16_flop_per_s, 'FLOP')}</span>
              </span>
            </label>
          </li>
        ))}
      </ul>
    </fieldset>
  )
}

const shellWord = (text: string) => (/^[\w:=.,+-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`)
