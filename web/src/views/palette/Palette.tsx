import { useQuery } from '@tanstack/react-query'
import { useNavigate, useRouterState } from '@tanstack/react-router'
import { Command } from 'cmdk'
import { useEffect, useRef, useState } from 'react'
import { shortKernel } from '../../canvas/labels'
import type { Layout } from '../../canvas/launches'
import { api, ask } from '../../lib/api'
import { familyShown } from '../../lib/families'
import { counted } from '../../lib/format'
import { keys, printed } from '../../lib/keys'
import { goalOf, scopeOf } from './goals'
import styles from './Palette.module.css'

const KERNELS_MAX = 300
const RUNS_MAX = 200

/** Whatever one looks for: kernels of this run, runs, traces, GPUs, commands with their keys, places to go to. */
export function Palette({ onClose }: { readonly onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null)
  const [typed, setTyped] = useState('')
  const navigate = useNavigate()
  const runId = useRouterState({ select: ({ location }) => /^\/runs\/([^/]+)/.exec(location.pathname)?.[1] })
  const runs = useQuery({ queryKey: ['runs'], queryFn: api.runs })
  const traces = useQuery({ queryKey: ['traces'], queryFn: api.traces })
  const gpus = useQuery({ queryKey: ['gpus'], queryFn: api.gpus, staleTime: Infinity })
  const traceId = runs.data?.find((run) => run.run_id === runId)?.trace_id
  const layout = useQuery({
    queryKey: ['layout', traceId, 'palette'],
    queryFn: () => ask<Layout>(`/api/traces/${encodeURIComponent(traceId ?? '')}/layout`),
    enabled: traceId !== undefined,
    staleTime: 60_000,
  })
  useEffect(() => dialog.current?.showModal(), [])
  const { scope, text } = scopeOf(typed)
  const goal = scope === 'go' ? goalOf(text) : null
  const isIn = (one: typeof scope) => scope === 'all' || scope === one
  const act = (action: () => unknown) => () => {
    dialog.current?.close()
    void action()
  }
  return (
    <dialog ref={dialog} className={styles.dialog} aria-label="Search and commands" onClose={onClose} onClick={(event) => event.target === dialog.current && dialog.current.close()}>
      <Command label="Search and commands" filter={(value, _, words) => (`${value} ${words?.join(' ') ?? ''}`.toLowerCase().includes(text.toLowerCase()) ? 1 : 0)}>
        <Command.Input
          className={styles.input}
          placeholder={'What do you look for?   > commands   # runs   @ GPUs   : go to'}
          value={typed}
          onValueChange={setTyped}
          autoFocus
        />
        <Command.List className={styles.list}>
          <Command.Empty className={styles.empty}>{scope === 'go' ? 'A time (12.4ms), a step (step 120), a launch (launch 88112) or a record of the log (offset 40).' : 'Nothing is called that.'}</Command.Empty>
          {goal !== null && runId !== undefined && (
            <Command.Group heading="Go to">
              <Command.Item
                value={`: ${text}`}
                onSelect={act(() =>
                  goal.kind === 'offset'
                    ? navigate({ to: '/runs/$runId', params: { runId }, search: { at: goal.at } })
                    : navigate({
                        to: '/runs/$runId/timeline',
                        params: { runId },
                        search: goal.kind === 'time' ? { ph: goal.ns, t0: goal.ns * 0.9, t1: Math.max(1000, goal.ns * 1.1) } : goal.kind === 'step' ? { step: goal.step } : { sel: `A.${goal.row}` },
                      }),
                )}
              >
                {goal.words}
              </Command.Item>
            </Command.Group>
          )}
          {scope === 'all' && runId !== undefined && text !== '' && (
            <Command.Group heading="Kernels of this run">
              {layout.data?.tasks.slice(0, KERNELS_MAX).map((task) => (
                <Command.Item
                  key={task.task_id}
                  value={`${task.name} ${task.task_id}`}
                  keywords={[task.family, task.op]}
                  onSelect={act(() => navigate({ to: '/runs/$runId/timeline', params: { runId }, search: { q: task.task_id } }))}
                >
                  <span className={styles.name} style={{ borderLeftColor: `var(--${familyShown(task.family).token})` }}>
                    {shortKernel(task.name)}
                  </span>
                  <span className={styles.what}>{counted(task.launch_count, 'launch', 'launches')}</span>
                </Command.Item>
              ))}
            </Command.Group>
          )}
          {isIn('commands') && (
            <Command.Group heading="Commands">
              {keys.bindings().map((binding) => (
                <Command.Item
                  key={`${binding.keys} ${binding.words}`}
                  value={`${binding.words} ${binding.group} ${binding.keys}`}
                  onSelect={act(() => binding.run(new KeyboardEvent('keydown')))}
                >
                  <span>{binding.words}</span>
                  <kbd>{printed(binding.keys)}</kbd>
                </Command.Item>
              ))}
            </Command.Group>
          )}
          {isIn('runs') && (
            <Command.Group heading="Runs and traces">
              {runs.data?.slice(0, RUNS_MAX).map((run) => (
                <Command.Item
                  key={run.run_id}
                  value={`run ${run.run_id} ${run.trace_name ?? ''}`}
                  onSelect={act(() => navigate({ to: '/runs/$runId', params: { runId: run.run_id } }))}
                >
                  <span>{run.trace_name ?? run.trace_id}</span>
                  <span className={styles.what}>
                    run <code>{run.run_id.slice(0, 8)}</code>, {run.status}
                  </span>
                </Command.Item>
              ))}
              {traces.data?.map((trace) => (
                <Command.Item
                  key={trace.trace_id}
                  value={`trace ${trace.trace_id} ${trace.name ?? ''} ${trace.model ?? ''}`}
                  onSelect={act(() => navigate({ to: '/traces/$traceId', params: { traceId: trace.trace_id } }))}
                >
                  <span>{trace.name ?? trace.trace_id}</span>
                  <span className={styles.what}>trace</span>
                </Command.Item>
              ))}
            </Command.Group>
          )}
          {isIn('gpus') && (
            <Command.Group heading="GPUs">
              {gpus.data?.map(({ spec }) => (
                <Command.Item key={spec.gpu} value={`gpu ${spec.gpu} ${spec.name}`} onSelect={act(() => navigate({ to: '/gpus/$name', params: { name: spec.gpu } }))}>
                  <span>{spec.name}</span>
                  <span className={styles.what}>{spec.architecture}</span>
                </Command.Item>
              ))}
            </Command.Group>
          )}
        </Command.List>
      </Command>
    </dialog>
  )
}
