import { useMutation, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { api, Refusal } from '../../lib/api'
import { Problem } from '../Problem'

const SAMPLE = 'opt-125m'
export const DEFAULT_GPUS = ['a100_sxm_80gb', 'l4', 'l40s', 'rtx_4090', 'h100_sxm', 'h200_sxm', 'b200_sxm', 'mi300x'] as const

/** Imports the bundled recording, asks for a run of it, and goes there. */
export function ExampleButton({ isPrimary }: { readonly isPrimary: boolean }) {
  const navigate = useNavigate()
  const queries = useQueryClient()
  const open = useMutation({
    mutationFn: async () => {
      const traceId = await api.importSample(SAMPLE)
      await imported(traceId)
      return api.startRun({ trace_id: traceId, gpus: DEFAULT_GPUS, simulator: 'analytic' })
    },
    onSuccess: async (runId) => {
      await queries.invalidateQueries()
      await navigate({ to: '/runs/$runId', params: { runId } })
    },
  })
  return (
    <>
      <button
        type="button"
        className={isPrimary ? 'button primary' : 'button'}
        disabled={open.isPending}
        onClick={() => open.mutate()}
      >
        {open.isPending ? 'Importing the example…' : 'Open the example'}
      </button>
      {open.error && <Problem error={open.error} />}
    </>
  )
}

async function imported(traceId: string): Promise<void> {
  for (;;) {
    const { status, reason } = await api.trace(traceId)
    if (status === 'complete') return
    if (status === 'rejected') throw new Refusal(reason ?? 'the trace was rejected', 400)
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
}
