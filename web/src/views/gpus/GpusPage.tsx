import { useQuery } from '@tanstack/react-query'
import { getRouteApi, Link } from '@tanstack/react-router'
import { useMemo } from 'react'
import { api, type ApiGpu } from '../../lib/api'
import { bytes, count, rate } from '../../lib/format'
import { CLASS_WORD, classOf, shortName, type GpuClass } from '../../lib/gpus'
import { Page } from '../Page'
import { Problem } from '../Problem'
import { Empty, Loading } from '../States'
import { sortedRows, type SortKey } from '../sorting'
import styles from './GpusPage.module.css'

const route = getRouteApi('/gpus')
const ORDER = Object.keys(CLASS_WORD) as GpuClass[]

interface Spec {
  readonly id: string
  readonly title: string
  readonly say: (gpu: ApiGpu) => string
  readonly by: (gpu: ApiGpu) => SortKey
}

const SPECS: readonly Spec[] = [
  { id: 'sm', title: 'SMs', say: ({ spec }) => count(spec.sm_count), by: ({ spec }) => spec.sm_count },
  { id: 'clock', title: 'Clock', say: ({ spec }) => `${(spec.boost_hz / 1e9).toFixed(2)} GHz`, by: ({ spec }) => spec.boost_hz },
  { id: 'bf16', title: 'bf16, dense', say: ({ spec }) => rate(spec.bf16_flop_per_s, 'FLOP'), by: ({ spec }) => spec.bf16_flop_per_s },
  { id: 'fp8', title: 'fp8, dense', say: ({ spec }) => (spec.fp8_flop_per_s === 0 ? '–' : rate(spec.fp8_flop_per_s, 'FLOP')), by: ({ spec }) => spec.fp8_flop_per_s || null },
  { id: 'dram', title: 'DRAM', say: ({ spec }) => bytes(spec.dram_bytes), by: ({ spec }) => spec.dram_bytes },
  { id: 'bandwidth', title: 'Bandwidth', say: ({ spec }) => rate(spec.dram_bytes_per_s, 'B'), by: ({ spec }) => spec.dram_bytes_per_s },
  { id: 'l2', title: 'L2', say: ({ spec }) => bytes(spec.l2_bytes), by: ({ spec }) => spec.l2_bytes },
  { id: 'link', title: 'Link', say: ({ spec }) => (spec.link_bytes_per_s === 0 ? 'PCIe' : rate(spec.link_bytes_per_s, 'B')), by: ({ spec }) => spec.link_bytes_per_s },
  { id: 'power', title: 'Power', say: ({ spec }) => `${spec.tdp_w} W`, by: ({ spec }) => spec.tdp_w },
  { id: 'year', title: 'Year', say: ({ spec }) => String(spec.year), by: ({ spec }) => spec.year },
]

/** Every GPU that can be asked about, by class; sorted by a figure they stand in one list. */
export function GpusPage() {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const gpus = useQuery({ queryKey: ['gpus'], queryFn: api.gpus, staleTime: Infinity })
  const wanted = (search.q ?? '').toLowerCase()
  const shown = useMemo(
    () =>
      (gpus.data ?? []).filter(({ spec, aliases }) =>
        [spec.name, spec.gpu, spec.architecture, CLASS_WORD[classOf(spec)], ...aliases].some((text) => text.toLowerCase().includes(wanted)),
      ),
    [gpus.data, wanted],
  )
  const by = SPECS.find(({ id }) => id === search.sort)
  const groups = useMemo(
    () =>
      by
        ? [{ name: null, gpus: sortedRows(shown, by.by, search.desc === true) }]
        : ORDER.map((name) => ({ name, gpus: shown.filter(({ spec }) => classOf(spec) === name) })).filter((group) => group.gpus.length > 0),
    [shown, by, search.desc],
  )
  const sort = (id: string) =>
    void navigate({
      search: (before) =>
        before.sort !== id ? { ...before, sort: id, desc: true } : before.desc ? { ...before, desc: undefined } : { ...before, sort: undefined, desc: undefined },
      replace: true,
    })
  return (
    <Page
      title="GPUs"
      actions={
        <input
          className="field"
          type="search"
          aria-label="Filter GPUs"
          placeholder="Filter by name, class, alias"
          value={search.q ?? ''}
          onChange={(event) => void navigate({ search: (before) => ({ ...before, q: event.target.value || undefined }), replace: true })}
        />
      }
    >
      {gpus.error && <Problem error={gpus.error} onRetry={() => void gpus.refetch()} />}
      {gpus.isPending && <Loading words="GPUs" rows={16} height={520} />}
      {gpus.data && shown.length === 0 && <Empty>No GPU matches “{search.q}”. A chip that nobody has built is written as overrides of one that exists.</Empty>}
      {shown.length > 0 && (
        <div className={`panel ${styles.frame}`} tabIndex={0} role="region" aria-label="GPUs and their figures">
          <table className={styles.table}>
            <thead>
              <tr>
                <th scope="col">GPU</th>
                {SPECS.map(({ id, title }) => (
                  <th key={id} scope="col" aria-sort={search.sort !== id ? 'none' : search.desc ? 'descending' : 'ascending'}>
                    <button type="button" onClick={() => sort(id)}>
                      {title} {search.sort === id ? (search.desc ? '↓' : '↑') : ''}
                    </button>
                  </th>
                ))}
              </tr>
            </thead>
            {groups.map((group) => (
              <tbody key={group.name ?? 'all'}>
                {group.name !== null && (
                  <tr className={styles.group}>
                    <th scope="rowgroup" colSpan={SPECS.length + 1}>
                      {CLASS_WORD[group.name]}
                    </th>
                  </tr>
                )}
                {group.gpus.map((gpu) => (
                  <tr key={gpu.spec.gpu}>
                    <th scope="row">
                      <Link to="/gpus/$name" params={{ name: gpu.spec.gpu }} className={styles.name} style={{ borderLeftColor: `var(--${classOf(gpu.spec)})` }}>
                        {shortName(gpu.spec)} <code>{gpu.spec.gpu}</code>
                      </Link>
                    </th>
                    {SPECS.map(({ id, say }) => (
                      <td key={id}>{say(gpu)}</td>
                    ))}
                  </tr>
                ))}
              </tbody>
            ))}
          </table>
        </div>
      )}
    </Page>
  )
}
