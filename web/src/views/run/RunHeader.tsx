import { useMutation } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { memo, type ReactNode } from 'react'
import { api } from '../../lib/api'
import { counted, count } from '../../lib/format'
import { STATUS, type Provenance as Kind } from '../../lib/words'
import { isOver, requestedConfigs, type Run } from '../../store/run'
import { Problem } from '../Problem'
import { Provenance } from '../Provenance'
import styles from './RunHeader.module.css'
import { Status } from '../Status'

interface Props {
  readonly runId: string
  /** Of the trace; '' while not known. */
  readonly name: string
  readonly provenance: Kind | null
  readonly status: Run['status']
  readonly reason: string
  readonly unknownCount: number
  /** As known now, which is what the buttons act on; all else is as shown. */
  readonly head: Run
  readonly isReplay: boolean
}

export const RunHeader = memo(function RunHeader({ runId, name, provenance, status, reason, unknownCount, head, isReplay }: Props) {
  const cancel = useMutation({ mutationFn: () => api.cancelRun(runId) })
  const verify = useMutation({ mutationFn: () => api.verifyRun(runId) })
  return (
    <header className={styles.header}>
      <div className={styles.title}>
        <h1>{name || `Run ${runId}`}</h1>
        <Provenance kind={provenance} />
        <Status word={status !== 'unknown' ? (STATUS[status] ?? status) : isReplay ? 'not asked for yet' : 'running'} />
        {isReplay && <span className={styles.replay}>as it was known then</span>}
        <div className={styles.actions}>
          {!isOver(head) && head.status === 'running' && (
            <button type="button" className="button" disabled={cancel.isPending} onClick={() => cancel.mutate()}>
              Cancel run
            </button>
          )}
          {/* There from the start, so that nothing moves when the run ends. */}
          <button
            type="button"
            className="button"
            disabled={verify.isPending || head.stateHash === ''}
            title="Fold the log anew and compare the state's hash with the one the run ended with"
            onClick={() => verify.mutate()}
          >
            {verify.isPending ? 'Replaying…' : 'Verify'}
          </button>
          <button
            type="button"
            className="button"
            disabled={!isOver(head)}
            title="The composed timeline as a file for Perfetto"
            onClick={() => window.location.assign(`/api/runs/${encodeURIComponent(runId)}/perfetto`)}
          >
            Perfetto
          </button>
          <Link
            className="button"
            to="/new"
            search={{ trace: head.trace.traceId, gpu: requestedConfigs(head).map((config) => config.spec.label) }}
          >
            Run again…
          </Link>
        </div>
      </div>
      {verify.data && (
        <p role="status" className={verify.data.equal ? styles.same : styles.differs}>
          {verify.data.equal
            ? 'The log, the store and a fresh replay agree on this state.'
            : `They differ: logged ${verify.data.logged || 'nothing'}, replayed ${verify.data.replayed}.`}
        </p>
      )}
      {verify.error && <Problem error={verify.error} />}
      {cancel.error && <Problem error={cancel.error} />}
      {reason !== '' && <Problem error={new Error(reason)} />}
      {unknownCount > 0 && (
        <p className={styles.differs}>
          {count(unknownCount)} records are of a newer version and are left out. Reload for the new page.
        </p>
      )}
    </header>
  )
})

/** Where the run's numbers come from. */
export function RunFacts({ run }: { readonly run: Run }) {
  const { trace } = run
  return (
    <dl className={styles.facts}>
      <Fact name="Model">{trace.model || 'not given'}</Fact>
      <Fact name="Engine">{trace.engine || 'unknown'}</Fact>
      <Fact name="Source GPU">{trace.sourceGpu ?? 'none'}</Fact>
      <Fact name="Trace">
        {counted(trace.kernelCount, 'kernel')}, {counted(trace.tasks.size, 'task')}, {counted(trace.steps.size, 'step')}
        {trace.isTruncated && ', truncated'}
        {trace.rankCount < trace.worldSize && `, ${trace.rankCount} of ${trace.worldSize} ranks`}
      </Fact>
      <Fact name="Simulator">{run.simulator || '–'}</Fact>
      <Fact name="Run">
        <code>{run.runId}</code>
      </Fact>
      <Fact name="State hash">{run.stateHash ? <code title={run.stateHash}>{run.stateHash.slice(0, 12)}</code> : '–'}</Fact>
    </dl>
  )
}

function Fact({ name, children }: { readonly name: string; readonly children: ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  )
}
