import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useEffect, useId, useRef, useState, type ReactNode } from 'react'
import { api, Refusal, upload, type TraceReport, type UploadOptions } from '../../lib/api'
import { bytes, counted, percent } from '../../lib/format'
import { ratio } from '../../lib/units'
import styles from './Imports.module.css'

const NO_OPTIONS: UploadOptions = { name: '', model: '', source_gpu: '', prompts: '', routing: '' }

interface Import {
  readonly key: number
  readonly files: readonly File[]
  readonly options: UploadOptions
}

interface ImportsProps {
  /** Nothing is shown before something is dropped: for pages that are about something else. */
  readonly isQuiet?: boolean
}

/** Drop files anywhere on the page, or choose them; each import has a row until it is closed. */
export function Imports({ isQuiet = false }: ImportsProps) {
  const [imports, setImports] = useState<readonly Import[]>([])
  const [options, setOptions] = useState(NO_OPTIONS)
  const nextKey = useRef(0)
  const picker = useRef<HTMLInputElement>(null)
  const start = (files: readonly File[], chosen: UploadOptions) => {
    if (files.length === 0) return
    nextKey.current += 1
    const key = nextKey.current
    setImports((now) => [{ key, files, options: chosen }, ...now])
  }
  const isOver = useDrop((files) => start(files, options))
  if (isQuiet && !isOver && imports.length === 0) return null
  return (
    <section className={`panel ${styles.zone} ${isOver ? styles.over : ''}`} aria-label="Import a trace">
      <div className={styles.head}>
        <p>
          <strong>{isOver ? 'Let go to import' : 'Drop a trace anywhere'}</strong>
          <span className={styles.hint}> Torch profiler (Kineto), Nsight Systems, or kernel tables; the ranks of one job together.</span>
        </p>
        <input
          ref={picker}
          type="file"
          multiple
          className="visually-hidden"
          tabIndex={-1}
          aria-hidden="true"
          onChange={(event) => {
            start([...(event.target.files ?? [])], options)
            event.target.value = ''
          }}
        />
        <button type="button" className="button" onClick={() => picker.current?.click()}>
          Import files…
        </button>
      </div>
      <Options value={options} onChange={setOptions} />
      {imports.length > 0 && (
        <ul className={styles.rows}>
          {imports.map((one) => (
            <ImportRow
              key={one.key}
              files={one.files}
              options={one.options}
              onClose={() => setImports((now) => now.filter((other) => other.key !== one.key))}
              onAgain={() => {
                setImports((now) => now.filter((other) => other.key !== one.key))
                start(one.files, options)
              }}
            />
          ))}
        </ul>
      )}
    </section>
  )
}

function useDrop(onFiles: (files: readonly File[]) => void): boolean {
  const [isOver, setIsOver] = useState(false)
  const latest = useRef(onFiles)
  useEffect(() => {
    latest.current = onFiles
  })
  useEffect(() => {
    const carriesFiles = (event: DragEvent) => event.dataTransfer?.types.includes('Files') ?? false
    const over = (event: DragEvent) => {
      if (!carriesFiles(event)) return
      event.preventDefault()
      setIsOver(true)
    }
    const leave = (event: DragEvent) => {
      if (event.relatedTarget === null) setIsOver(false)
    }
    const drop = (event: DragEvent) => {
      if (!carriesFiles(event)) return
      event.preventDefault()
      setIsOver(false)
      latest.current([...(event.dataTransfer?.files ?? [])])
    }
    window.addEventListener('dragover', over)
    window.addEventListener('dragleave', leave)
    window.addEventListener('drop', drop)
    return () => {
      window.removeEventListener('dragover', over)
      window.removeEventListener('dragleave', leave)
      window.removeEventListener('drop', drop)
    }
  }, [])
  return isOver
}

function Options({ value, onChange }: { readonly value: UploadOptions; readonly onChange: (value: UploadOptions) => void }) {
  const id = useId()
  const models = useQuery({ queryKey: ['models'], queryFn: api.models, staleTime: Infinity })
  const gpus = useQuery({ queryKey: ['gpus'], queryFn: api.gpus, staleTime: Infinity })
  const set = (field: keyof UploadOptions) => (event: { readonly target: { readonly value: string } }) =>
    onChange({ ...value, [field]: event.target.value })
  return (
    <details className={styles.options}>
      <summary>What the file does not say: model, GPU, prompts, routing</summary>
      <div className={styles.fields}>
        <Field id={`${id}-model`} label="Model, or a config.json’s text">
          <input id={`${id}-model`} className="field" list={`${id}-models`} value={value.model} onChange={set('model')} />
          <datalist id={`${id}-models`}>
            {models.data?.map((model) => <option key={model.name} value={model.name} />)}
          </datalist>
        </Field>
        <Field id={`${id}-gpu`} label="GPU it was recorded on">
          <select id={`${id}-gpu`} className="field" value={value.source_gpu} onChange={set('source_gpu')}>
            <option value="">as the file says</option>
            {gpus.data?.map(({ spec }) => (
              <option key={spec.gpu} value={spec.gpu}>
                {spec.name}
              </option>
            ))}
          </select>
        </Field>
        <Field id={`${id}-prompts`} label="Prompt tokens per request">
          <input id={`${id}-prompts`} className="field" placeholder="512,1200" value={value.prompts} onChange={set('prompts')} />
        </Field>
        <Field id={`${id}-routing`} label="Routing of tokens to experts">
          <input id={`${id}-routing`} className="field" placeholder="even, or zipf:1" value={value.routing} onChange={set('routing')} />
        </Field>
        <Field id={`${id}-name`} label="Name">
          <input id={`${id}-name`} className="field" placeholder="the file’s" value={value.name} onChange={set('name')} />
        </Field>
      </div>
    </details>
  )
}

function Field({ id, label, children }: { readonly id: string; readonly label: string; readonly children: ReactNode }) {
  return (
    <div className={styles.field}>
      <label htmlFor={id}>{label}</label>
      {children}
    </div>
  )
}

type Stage =
  | { readonly is: 'sending'; readonly sentBytes: number }
  | { readonly is: 'importing'; readonly traceId: string }
  | { readonly is: 'refused'; readonly sentence: string }

function ImportRow({
  files,
  options,
  onClose,
  onAgain,
}: {
  readonly files: readonly File[]
  readonly options: UploadOptions
  readonly onClose: () => void
  readonly onAgain: () => void
}) {
  const queries = useQueryClient()
  const totalBytes = files.reduce((sum, file) => sum + file.size, 0)
  const about = useQuery({ queryKey: ['about'], queryFn: api.about, staleTime: Infinity })
  const limit = about.data?.upload_bytes_limit ?? Infinity
  const [stage, setStage] = useState<Stage>({ is: 'sending', sentBytes: 0 })
  const isTooLarge = totalBytes > limit
  useEffect(() => {
    if (isTooLarge) return undefined
    const sending = upload(files, options, (sentBytes) => setStage({ is: 'sending', sentBytes }))
    let isGone = false
    sending.traceId.then(
      (traceId) => {
        if (!isGone) setStage({ is: 'importing', traceId })
        void queries.invalidateQueries({ queryKey: ['traces'] })
      },
      (error: unknown) => {
        if (!isGone) setStage({ is: 'refused', sentence: error instanceof Refusal ? error.message : String(error) })
      },
    )
    return () => {
      isGone = true
      sending.cancel()
    }
  }, [files, options, isTooLarge, queries])
  const shown: Stage = isTooLarge
    ? { is: 'refused', sentence: `${bytes(totalBytes)} are more than this server takes (${bytes(limit)}); raise CASCADE_UPLOAD_MIB` }
    : stage
  const name = files.length === 1 ? (files[0]?.name ?? '') : `${files[0]?.name ?? ''} and ${files.length - 1} more`
  return (
    <li className={styles.row}>
      <code className={styles.file}>{name}</code>
      {shown.is === 'sending' && <Sending sentBytes={Math.min(shown.sentBytes, totalBytes)} totalBytes={totalBytes} />}
      {shown.is === 'importing' && <Importing traceId={shown.traceId} onAgain={onAgain} />}
      {shown.is === 'refused' && <Refused sentence={shown.sentence} onAgain={isTooLarge ? null : onAgain} />}
      <button type="button" className="button quiet" onClick={onClose} aria-label={`Close the row of ${name}`}>
        ✕
      </button>
    </li>
  )
}

function Sending({ sentBytes, totalBytes }: { readonly sentBytes: number; readonly totalBytes: number }) {
  return (
    <span className={styles.state}>
      <progress className={styles.progress} value={sentBytes} max={Math.max(1, totalBytes)} aria-label="Bytes sent" />
      {bytes(sentBytes)} of {bytes(totalBytes)} · {percent(ratio(totalBytes ? sentBytes / totalBytes : 1))}
    </span>
  )
}

function Importing({ traceId, onAgain }: { readonly traceId: string; readonly onAgain: () => void }) {
  const queries = useQueryClient()
  const trace = useQuery({
    queryKey: ['trace', traceId],
    queryFn: () => api.trace(traceId),
    refetchInterval: (query) => (query.state.data === undefined || query.state.data.status === 'importing' ? 400 : false),
  })
  const status = trace.data?.status
  useEffect(() => {
    if (status === 'complete' || status === 'rejected') void queries.invalidateQueries({ queryKey: ['traces'] })
  }, [status, queries])
  if (trace.error) return <Refused sentence={trace.error.message} onAgain={onAgain} />
  if (trace.data?.status === 'rejected') return <Refused sentence={trace.data.reason ?? 'rejected'} onAgain={onAgain} />
  if (trace.data?.status === 'complete') return <Imported trace={trace.data} />
  return (
    <span className={styles.state} role="status">
      <progress className={styles.progress} aria-label="Importing" />
      importing
    </span>
  )
}

function Imported({ trace }: { readonly trace: TraceReport }) {
  const notes = Object.entries(trace.quality ?? {}).filter(([, value]) => typeof value === 'number' && value > 0)
  return (
    <span className={styles.state} role="status">
      <span>
        {counted(trace.kernels ?? 0, 'kernel')}, {counted(trace.signatures ?? 0, 'signature')},{' '}
        {counted(trace.steps.length, 'step')}
        {trace.is_truncated && ', truncated'}
        {notes.length > 0 && (
          <span className={styles.hint}> · {notes.map(([name, value]) => `${name.replaceAll('_', ' ')} ${String(value)}`).join(', ')}</span>
        )}
      </span>
      <Link to="/new" search={{ trace: trace.trace_id }} className="button">
        New run
      </Link>
    </span>
  )
}

function Refused({ sentence, onAgain }: { readonly sentence: string; readonly onAgain: (() => void) | null }) {
  return (
    <span className={styles.state} role="alert">
      <span className={styles.refused}>{sentence}</span>
      {onAgain && (
        <button type="button" className="button" onClick={onAgain}>
          Again, with the options above
        </button>
      )}
    </span>
  )
}
