import { tableFromIPC, type Table } from 'apache-arrow'
import type { LaunchColumns, Layout } from './launches'
import type { ResultColumns } from './results'

export const PAGE_LAUNCHES = 262_144

export async function fetchLayout(traceId: string): Promise<Layout> {
  return (await asked(`/api/traces/${encodeURIComponent(traceId)}/layout`)).json() as Promise<Layout>
}

/** A page of launches from a row on, and how many rows there are by now. */
export async function fetchLaunches(traceId: string, from: number): Promise<{ readonly page: LaunchColumns; readonly total: number }> {
  const response = await asked(`/api/traces/${encodeURIComponent(traceId)}/launches?from=${from}&count=${PAGE_LAUNCHES}`)
  const total = Number(response.headers.get('x-cascade-launches'))
  return { page: launchColumns(tableFromIPC(new Uint8Array(await response.arrayBuffer()))), total }
}

/** A config's results so far. */
export async function fetchResults(runId: string, configId: string): Promise<ResultColumns> {
  const response = await asked(`/api/runs/${encodeURIComponent(runId)}/durations/${encodeURIComponent(configId)}`)
  return resultColumns(tableFromIPC(new Uint8Array(await response.arrayBuffer())))
}

async function asked(path: string): Promise<Response> {
  const response = await fetch(path, { credentials: 'same-origin' })
  if (response.ok) return response
  const text = await response.text()
  let sentence = `The server answered ${response.status}.`
  try {
    sentence = (JSON.parse(text) as { error: string }).error
  } catch {
    // no sentence of its own
  }
  throw new Error(sentence)
}

export function launchColumns(table: Table): LaunchColumns {
  return {
    count: table.numRows,
    rank: column(table, 'rank') as Uint16Array,
    seq: column(table, 'seq') as Uint32Array,
    task: column(table, 'task') as Uint32Array,
    stream: column(table, 'stream') as Uint16Array,
    step: column(table, 'step') as Int32Array,
    graph: column(table, 'graph') as Uint8Array,
    hostStart: column(table, 'host_start') as Float64Array,
    measuredStart: column(table, 'measured_start') as Float64Array,
    measuredDuration: column(table, 'measured_duration') as Float64Array,
  }
}

export function resultColumns(table: Table): ResultColumns {
  const numbers = (name: string) => column(table, name) as Float64Array
  return {
    task: column(table, 'task') as Uint32Array,
    duration: numbers('duration'),
    p10: numbers('p10'),
    p90: numbers('p90'),
    forward: numbers('forward'),
    roofline: numbers('roofline'),
    measured: numbers('measured'),
    correction: numbers('correction'),
    family: words(table, 'family'),
    bound: words(table, 'bound'),
    tier: words(table, 'tier'),
    reason: words(table, 'reason'),
    isFailed: column(table, 'is_failed') as Uint8Array,
  }
}

function column(table: Table, name: string): unknown {
  const found = table.getChild(name)
  if (found === null) throw new Error(`the server's answer has no column ${name}`)
  return found.toArray()
}

function words(table: Table, name: string): readonly string[] {
  const found = table.getChild(name)
  return found === null ? [] : Array.from(found, (value: string | null) => value ?? '')
}
