import { useQueries, useQuery } from '@tanstack/react-query'
import { tableFromIPC, type Table } from 'apache-arrow'
import { useMemo } from 'react'
import { fetchLayout, fetchResults } from '../../canvas/loader'
import type { ResultColumns } from '../../canvas/results'
import { profileBytes, workBytes } from '../../lib/screens'
import type { Config, Run } from '../../store/run'
import { taskRows, type KernelRow } from './kernelRows'

export interface Kernels {
  readonly rows: readonly KernelRow[]
  readonly isLoading: boolean
  readonly error: Error | null
  readonly refetch: () => void
}

/** The kernels of a run on these configs, asked again as results come. base: the config whose trend is drawn. */
export function useKernels(run: Run, configs: readonly Config[], base: number): Kernels {
  const traceId = run.trace.traceId
  const layout = useQuery({
    queryKey: ['layout', traceId, run.trace.status, run.trace.tasks.size],
    queryFn: () => fetchLayout(traceId),
    enabled: traceId !== '',
    placeholderData: (before) => before,
  })
  const isWhole = run.trace.status === 'complete'
  const profile = useQuery({
    queryKey: ['profile', traceId],
    queryFn: async () => profileOf(await profileBytes(traceId)),
    enabled: isWhole,
    staleTime: Infinity,
  })
  const work = useQuery({
    queryKey: ['work', traceId],
    queryFn: async () => workOf(await workBytes(traceId)),
    enabled: isWhole,
    staleTime: Infinity,
  })
  const results = useQueries({
    queries: configs.map((config) => ({
      queryKey: ['durations', run.runId, config.spec.config_id, config.results.size, config.accuracy !== null, config.isRefined],
      queryFn: () => fetchResults(run.runId, config.spec.config_id),
      placeholderData: (before: ResultColumns | undefined) => before,
      staleTime: Infinity,
    })),
    combine: (found) => ({
      columns: found.map(({ data }) => data ?? null),
      error: found.find(({ error }) => error !== null)?.error ?? null,
      isLoading: found.some(({ isPending }) => isPending),
      refetch: () => found.forEach(({ refetch }) => void refetch()),
    }),
  })
  const rows = useMemo(
    () => taskRows(layout.data?.tasks ?? [], results.columns, base, profile.data ?? null, work.data ?? null),
    [layout.data, results.columns, base, profile.data, work.data],
  )
  return {
    rows,
    isLoading: layout.isPending || results.isLoading,
    error: layout.error ?? results.error,
    refetch: () => {
      void layout.refetch()
      results.refetch()
    },
  }
}

const numbers = (table: Table, name: string) => table.getChild(name)?.toArray() as ArrayLike<number>

function profileOf(bytes: Uint8Array) {
  const table = tableFromIPC(bytes)
  return { task: numbers(table, 'task'), bin: numbers(table, 'bin'), count: numbers(table, 'count') }
}

function workOf(bytes: Uint8Array) {
  const table = tableFromIPC(bytes)
  return { flop: numbers(table, 'flop'), movedBytes: numbers(table, 'moved_bytes') }
}
