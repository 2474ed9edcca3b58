import { useQuery } from '@tanstack/react-query'
import { getRouteApi, Link } from '@tanstack/react-router'
import { ask, type ApiGpu } from '../../lib/api'
import { CLASS_WORD, classOf } from '../../lib/gpus'
import { Page } from '../Page'
import { Problem } from '../Problem'
import { Loading } from '../States'
import { FIGURES } from './figures'
import styles from './GpuPage.module.css'

const route = getRouteApi('/gpus/$name')

interface SourcedGpu extends ApiGpu {
  readonly programming_class: string
  readonly sources: Readonly<Record<string, string>>
}

const PROGRAMMED: Readonly<Record<string, string>> = {
  mma_sync: 'mma.sync: warps multiply',
  wgmma: 'wgmma: warp groups multiply, asynchronously',
  tcgen05: 'tcgen05: one thread issues, results in tensor memory',
  mfma: 'MFMA: AMD matrix cores',
}

/** Every number of a GPU, and where it is from. */
export function GpuPage() {
  const { name } = route.useParams()
  const found = useQuery({ queryKey: ['gpu', name], queryFn: () => ask<SourcedGpu>(`/api/gpus/${encodeURIComponent(name)}`), staleTime: Infinity })
  if (found.error) {
    return (
      <Page title={name}>
        <Problem error={found.error} />
        <Link to="/gpus" className="button">
          All GPUs
        </Link>
      </Page>
    )
  }
  if (found.data === undefined) {
    return (
      <Page title={name}>
        <Loading words="Figures" rows={16} height={520} />
      </Page>
    )
  }
  const { spec, aliases, programming_class: programmed, sources, config_id: configId } = found.data
  return (
    <Page
      title={spec.name}
      actions={
        <Link to="/new" search={{ gpu: [spec.gpu] }} className="button primary">
          New run on it
        </Link>
      }
    >
      <dl className={styles.facts}>
        <dt>id</dt>
        <dd>
          <code>{spec.gpu}</code>
        </dd>
        <dt>class</dt>
        <dd>
          <span className={styles.swatch} style={{ background: `var(--${classOf(spec)})` }} aria-hidden="true" />
          {CLASS_WORD[classOf(spec)]}
          {spec.compute_capability && `, compute capability ${spec.compute_capability.join('.')}`}
        </dd>
        <dt>tensor cores</dt>
        <dd>{PROGRAMMED[programmed] ?? programmed}</dd>
        <dt>also called</dt>
        <dd>{aliases.length === 0 ? 'nothing else' : aliases.join(', ')}</dd>
        <dt>config</dt>
        <dd>
          <code>{configId}</code>
        </dd>
      </dl>
      <div className={`panel ${styles.frame}`}>
        <table className={styles.table}>
          <thead>
            <tr>
              <th scope="col">Figure</th>
              <th scope="col">Value</th>
              <th scope="col">Source</th>
              <th scope="col">Override</th>
            </tr>
          </thead>
          <tbody>
            {FIGURES.map(({ field, words, say, override }) => (
              <tr key={field}>
                <th scope="row">{words}</th>
                <td>{say(spec)}</td>
                <td className={styles.source}>{sources[field] ?? 'not given'}</td>
                <td>{override !== '' && <code>{override}</code>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p className={styles.note}>
        Peaks are dense rates at boost clock. A chip that nobody has built is this one with overrides: <code>{spec.gpu}:dram_gbps=6000,sm=160</code>
      </p>
    </Page>
  )
}
