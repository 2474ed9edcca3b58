import { useQuery } from '@tanstack/react-query'
import { getRouteApi, Link } from '@tanstack/react-router'
import { useMemo, useState } from 'react'
import { fetchLayout } from '../../canvas/loader'
import { familyShown } from '../../lib/families'
import { count, counted, MISSING, timeWithUnit } from '../../lib/format'
import { screens, type TraceDetails } from '../../lib/screens'
import { ms } from '../../lib/units'
import { PROVENANCE, provenanceOf, STATUS } from '../../lib/words'
import { DataTable, type Column } from '../DataTable'
import type { LaidOutTask } from '../kernels/kernelRows'
import { shortKernel } from '../kernels/kernelRows'
import { Page } from '../Page'
import { Problem } from '../Problem'
import { Provenance } from '../Provenance'
import { Empty, Loading } from '../States'
import { Status } from '../Status'
import type { Sort } from '../sorting'
import styles from './TracePage.module.css'

const route = getRouteApi('/traces/$traceId')
const TABS = ['quality', 'steps', 'signatures'] as const
const POLL_MS = 600

/** One recording: how well it was read, its steps, and the distinct kernels in it. */
export function TracePage() {
  const { traceId } = route.useParams()
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const tab = search.tab ?? 'quality'
  const found = useQuery({
    queryKey: ['trace', traceId, 'details'],
    queryFn: () => screens.trace(traceId),
    refetchInterval: (query) => (query.state.data?.status === 'importing' ? POLL_MS : false),
  })
  const trace = found.data
  if (found.error) {
    return (
      <Page title="Trace">
        <Problem error={found.error} onRetry={() => void found.refetch()} />
        <Link to="/traces" className="button">
          All traces
        </Link>
      </Page>
    )
  }
  if (trace === undefined) {
    return (
      <Page title="Trace">
        <Loading words="Trace" rows={12} height={420} />
      </Page>
    )
  }
  return (
    <Page
      title={trace.name ?? trace.trace_id}
      actions={
        <>
          <Provenance kind={provenanceOf(trace.provenance)} />
          <Status word={trace.is_truncated === true ? 'truncated' : (STATUS[trace.status] ?? trace.status)} />
          <Link to="/new" search={{ trace: trace.trace_id }} className="button primary">
            New run
          </Link>
        </>
      }
    >
      {trace.reason !== null && trace.reason !== '' && <Problem error={new Error(trace.reason)} />}
      <Facts trace={trace} />
      <div className={styles.tabs} role="tablist" aria-label="Of this trace">
        {TABS.map((one) => (
          <button
            key={one}
            type="button"
            role="tab"
            id={`tab-${one}`}
            aria-selected={tab === one}
            aria-controls="tab-panel"
            onClick={() => void navigate({ search: (before) => ({ ...before, tab: one === 'quality' ? undefined : one }), replace: true })}
          >
            {one}
          </button>
        ))}
      </div>
      <div role="tabpanel" id="tab-panel" aria-labelledby={`tab-${tab}`}>
        {tab === 'quality' && <Quality trace={trace} />}
        {tab === 'steps' && <Steps trace={trace} />}
        {tab === 'signatures' && <Signatures traceId={trace.trace_id} status={trace.status} />}
      </div>
    </Page>
  )
}

function Facts({ trace }: { readonly trace: TraceDetails }) {
  const provenance = provenanceOf(trace.provenance)
  const facts: readonly (readonly [string, string | null])[] = [
    ['model', trace.model],
    ['recorded on', trace.source_gpu],
    ['engine', trace.engine && `${trace.engine} ${trace.engine_version ?? ''}`],
    ['tool', trace.tool],
    ['ranks', trace.ranks === null ? null : trace.world_size !== null && trace.world_size > trace.ranks ? `${trace.ranks} of ${trace.world_size}; the missing ones are assumed equal` : String(trace.ranks)],
    ['what it is', provenance && PROVENANCE[provenance].meaning],
    ['id', trace.trace_id],
  ]
  return (
    <dl className={styles.facts}>
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value ?? MISSING}</dd>
        </div>
      ))}
    </dl>
  )
}

const COUNTS: readonly (readonly [keyof TraceDetails, string])[] = [
  ['launches', 'launches'],
  ['kernels', 'kernel launches'],
  ['signatures', 'signatures'],
  ['tasks', 'kernel tasks'],
  ['launchless_kernels', 'kernels whose launch lies outside the recorded window'],
]

/** What a report's figures count. */
const FOUND: Readonly<Record<string, string>> = {
  event_count: 'events read',
  dropped_event_count: 'malformed events that were left out',
  is_truncated: 'cut off before its end',
  non_finite_count: 'values that are no numbers',
  launchless_count: 'kernels without their launch',
  gridless_count: 'kernels without a grid',
  overlap_count: 'kernels that begin before the one before them ended',
  overrun_clipped_count: 'durations cut at the next kernel',
  zero_duration_count: 'kernels that took no time',
  negative_duration_count: 'durations below zero',
  duplicate_count: 'events told twice',
  opaque_graph_launch_count: 'graph launches without their kernels',
  before_launch_count: 'kernels that begin before they were launched',
  redacted_count: 'values withheld that looked like a secret',
  capture_mismatch: 'graphs that differ from their capture',
  notes: 'notes',
}
const foundWords = (name: string): string => FOUND[name] ?? name.replaceAll('_', ' ')

/** What the import counted, what it could not read, and what to do about it. */
function Quality({ trace }: { readonly trace: TraceDetails }) {
  const all: readonly (readonly [string, unknown])[] = Object.entries(trace.quality ?? {})
  const isNothing = (value: unknown) => value === 0 || value === false || value === '' || value === null || (Array.isArray(value) && value.length === 0)
  const notes = all.filter(([, value]) => !isNothing(value))
  const absent = all.filter(([, value]) => isNothing(value)).map(([name]) => foundWords(name))
  return (
    <div className={styles.quality}>
      <ul className={styles.counts}>
        {COUNTS.map(([name, words]) => (
          <li key={name} className="panel">
            <b>{typeof trace[name] === 'number' ? count(trace[name]) : MISSING}</b>
            <span>{words}</span>
          </li>
        ))}
        <li className="panel">
          <b>{count(trace.steps.length)}</b>
          <span>engine steps</span>
        </li>
      </ul>
      {all.length === 0 ? (
        <Empty>{trace.status === 'importing' ? 'The report comes when the import has ended.' : 'The import has nothing more to report.'}</Empty>
      ) : (
        <dl className={`panel ${styles.notes}`}>
          {notes.map(([name, value]) => (
            <div key={name}>
              <dt>{foundWords(name)}</dt>
              <dd>
                <Noted value={value} />
              </dd>
            </div>
          ))}
          {absent.length > 0 && (
            <div>
              <dt>none of</dt>
              <dd className={styles.absent}>{absent.join(', ')}</dd>
            </div>
          )}
        </dl>
      )}
    </div>
  )
}

function Noted({ value }: { readonly value: unknown }) {
  if (value === null || value === undefined || value === '') return <>{MISSING}</>
  if (typeof value === 'number') return <>{count(value)}</>
  if (typeof value === 'boolean') return <>{value ? 'yes' : 'no'}</>
  if (typeof value === 'string') return <>{value}</>
  if (Array.isArray(value)) {
    return value.length === 0 ? (
      <>none</>
    ) : (
      <ul>
        {value.map((one: unknown, index) => (
          <li key={index}>
            <Noted value={one} />
          </li>
        ))}
      </ul>
    )
  }
  const entries: readonly (readonly [string, unknown])[] = Object.entries(value)
  return entries.length === 0 ? (
    <>none</>
  ) : (
    <ul>
      {entries.map(([name, one]) => (
        <li key={name}>
          {name}: <Noted value={one} />
        </li>
      ))}
    </ul>
  )
}

type Step = TraceDetails['steps'][number]

const STEP_COLUMNS: readonly Column<Step>[] = [
  { id: 'step', title: 'Step', width: 80, isNumber: true, isSticky: true, sortBy: ({ step }) => step, cell: ({ step }) => count(step) },
  { id: 'phase', title: 'Phase', width: 112, sortBy: ({ phase }) => phase, cell: ({ phase }) => phase },
  { id: 'prefills', title: 'Prefilling requests', width: 152, isNumber: true, sortBy: (step) => step.context_requests, cell: (step) => count(step.context_requests) },
  { id: 'prompt', title: 'Prompt tokens', width: 128, isNumber: true, sortBy: (step) => step.context_tokens, cell: (step) => count(step.context_tokens) },
  { id: 'decodes', title: 'Decoding requests', width: 152, isNumber: true, sortBy: (step) => step.generation_requests, cell: (step) => count(step.generation_requests) },
  { id: 'tokens', title: 'New tokens', width: 112, isNumber: true, sortBy: (step) => step.generation_tokens, cell: (step) => count(step.generation_tokens) },
  { id: 'kernels', title: 'Kernels', width: 112, grows: true, isNumber: true, sortBy: ({ kernels }) => kernels, cell: ({ kernels }) => count(kernels) },
]

function Steps({ trace }: { readonly trace: TraceDetails }) {
  const [sort, setSort] = useState<Sort | undefined>(undefined)
  return (
    <div className={`panel ${styles.table}`}>
      <DataTable label="Steps" rows={trace.steps} columns={STEP_COLUMNS} keyOf={({ step }) => String(step)} sort={sort} onSort={setSort} maxHeight={560} empty={<Empty>No engine step is in this trace: it has kernels alone.</Empty>} />
    </div>
  )
}

function Signatures({ traceId, status }: { readonly traceId: string; readonly status: string }) {
  const layout = useQuery({ queryKey: ['layout', traceId, status], queryFn: () => fetchLayout(traceId) })
  const [sort, setSort] = useState<Sort>({ by: 'n', isDescending: true })
  const columns = useMemo<readonly Column<LaidOutTask>[]>(
    () => [
      {
        id: 'name',
        title: 'Kernel',
        width: 320,
        grows: true,
        isSticky: true,
        sortBy: ({ name }) => name,
        cell: ({ name, family }) => (
          <span className={styles.kernel} title={name}>
            <span className={styles.dot} style={{ background: `var(--${familyShown(family).token})` }} aria-hidden="true" />
            <code>{shortKernel(name)}</code>
          </span>
        ),
      },
      { id: 'family', title: 'Family', width: 144, sortBy: ({ family }) => family, cell: ({ family }) => familyShown(family).word },
      { id: 'op', title: 'Op', width: 240, sortBy: ({ op }) => op, cell: ({ op }) => (op === '' ? MISSING : <code>{op}</code>) },
      { id: 'n', title: 'n', width: 88, isNumber: true, sortBy: (task) => task.launch_count, cell: (task) => count(task.launch_count) },
      { id: 'measured', title: 'Measured', hint: 'Median of its launches', width: 120, isNumber: true, sortBy: (task) => task.measured_ns, cell: (task) => (task.measured_ns === null ? MISSING : timeWithUnit(ms(task.measured_ns / 1e6))) },
    ],
    [],
  )
  if (layout.error) return <Problem error={layout.error} onRetry={() => void layout.refetch()} />
  if (layout.data === undefined) return <Loading words="Signatures" rows={10} height={420} />
  return (
    <>
      <p className={styles.hint}>{counted(layout.data.tasks.length, 'kernel task')}: a signature, and what fixes its work.</p>
      <div className={`panel ${styles.table}`}>
        <DataTable label="Signatures" rows={layout.data.tasks} columns={columns} keyOf={(task) => task.task_id} sort={sort} onSort={setSort} maxHeight={560} empty={<Empty>No kernel is known yet.</Empty>} />
      </div>
    </>
  )
}
