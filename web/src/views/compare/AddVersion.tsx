import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { api, ask } from '../../lib/api'

interface RunConfigs {
  readonly configs: readonly { readonly label: string; readonly config_id: string }[]
}

/** Another config to compare with: first its run, then which of its GPUs. */
export function AddVersion({ chosen, onAdd }: { readonly chosen: readonly string[]; readonly onAdd: (version: string) => void }) {
  const [run, setRun] = useState(chosen[0]?.split('.')[0] ?? '')
  const runs = useQuery({ queryKey: ['runs'], queryFn: api.runs })
  const progress = useQuery({
    queryKey: ['progress', run],
    queryFn: () => ask<RunConfigs>(`/api/runs/${encodeURIComponent(run)}/progress`),
    enabled: run !== '',
  })
  const configs = (progress.data?.configs ?? []).filter(({ config_id: id }) => !chosen.includes(`${run}.${id}`))
  return (
    <span>
      <select className="field" aria-label="Run to add from" value={run} onChange={(event) => setRun(event.target.value)}>
        <option value="">add from run…</option>
        {runs.data?.slice(0, 200).map((one) => (
          <option key={one.run_id} value={one.run_id}>
            {one.trace_name ?? one.trace_id}, {one.run_id.slice(0, 8)}
          </option>
        ))}
      </select>{' '}
      <select className="field" aria-label="Config to add" value="" disabled={configs.length === 0} onChange={(event) => onAdd(`${run}.${event.target.value}`)}>
        <option value="">{configs.length === 0 ? 'all are here' : 'GPU…'}</option>
        {configs.map(({ label, config_id: id }) => (
          <option key={id} value={id}>
            {label}
          </option>
        ))}
      </select>
    </span>
  )
}
