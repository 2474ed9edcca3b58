import type { GpuSpec, ModelSpec } from '../schema/events'

/** The server's refusal: its one sentence, to be shown as it is. */
export class Refusal extends Error {
  override readonly name = 'Refusal'
  constructor(
    sentence: string,
    readonly status: number,
  ) {
    super(sentence)
  }
}

export interface ApiEstimate {
  readonly value: number
  readonly p10: number
  readonly p90: number
}

export interface ListedTrace {
  readonly trace_id: string
  readonly name: string | null
  readonly status: string
  readonly provenance: string | null
  readonly source_gpu: string | null
  readonly model: string | null
  readonly engine: string | null
  readonly engine_version: string | null
  readonly is_truncated: boolean | null
  readonly reason: string | null
  readonly kernels: number | null
  readonly uploaded_at_ms: number | null
}

export interface TraceReport extends Omit<ListedTrace, 'uploaded_at_ms'> {
  readonly signatures: number | null
  readonly tasks: number | null
  readonly launches: number | null
  readonly steps: readonly { readonly step: number; readonly phase: string }[]
  readonly quality: Readonly<Record<string, unknown>> | null
}

export interface ListedRun {
  readonly run_id: string
  readonly trace_id: string
  readonly name: string | null
  readonly status: string
  readonly trace_name: string | null
  readonly provenance: string | null
  readonly model_name: string | null
  readonly requested_at_ms: number | null
  readonly config_count: number
  readonly best: (ApiEstimate & { readonly gpu: string; readonly metric: 'tpot' | 'ttft' }) | null
}

export interface ApiGpu {
  readonly spec: GpuSpec
  readonly config_id: string
  readonly aliases: readonly string[]
}

export interface About {
  readonly version: string
  readonly simulators: readonly string[]
  readonly models: readonly string[]
  readonly samples: readonly string[]
  readonly upload_bytes_limit: number
}

export interface Verification {
  readonly equal: boolean
  readonly logged: string
  readonly replayed: string
}

export const api = {
  /** Refused with status 503 where a part of the server has stopped; its sentence says which. */
  health: () => ask<{ readonly status: string }>('/api/health'),
  about: () => ask<About>('/api/about'),
  gpus: async () => (await ask<{ readonly gpus: readonly ApiGpu[] }>('/api/gpus')).gpus,
  models: async () => (await ask<{ readonly models: readonly ModelSpec[] }>('/api/models')).models,
  traces: async () => (await ask<{ readonly traces: readonly ListedTrace[] }>('/api/traces')).traces,
  trace: (id: string) => ask<TraceReport>(`/api/traces/${encodeURIComponent(id)}`),
  runs: async () => (await ask<{ readonly runs: readonly ListedRun[] }>('/api/runs')).runs,
  startRun: async (body: RunBody) => (await ask<{ readonly run_id: string }>('/api/runs', body)).run_id,
  cancelRun: (id: string) => ask<{ readonly status: string }>(`/api/runs/${encodeURIComponent(id)}/cancel`, {}),
  verifyRun: (id: string) => ask<Verification>(`/api/runs/${encodeURIComponent(id)}/verify`, {}),
  /** at: a position of the run's log, lines as known then; null: now. */
  logLines: (runId: string, configId: string, first: number, count: number, at: number | null) =>
    ask<LogLines>(`/api/runs/${encodeURIComponent(runId)}/log/${encodeURIComponent(configId)}?from=${first}&count=${count}${momentOf(at)}`),
  logSearch: (runId: string, configId: string, text: string, first: number, at: number | null) =>
    ask<LogMatches>(
      `/api/runs/${encodeURIComponent(runId)}/log/${encodeURIComponent(configId)}/search?q=${encodeURIComponent(text)}&from=${first}&limit=1000${momentOf(at)}`,
    ),
  /** The hash of what a run's log says up to a position, folded anew by the server. */
  stateHash: async (runId: string, at: number) =>
    (await ask<{ readonly state_hash: string }>(`/api/runs/${encodeURIComponent(runId)}/state?at=${at}`)).state_hash,
  importSample: async (name: string) =>
    (await ask<{ readonly trace_id: string }>('/api/samples', { name })).trace_id,
}

const momentOf = (at: number | null): string => (at === null ? '' : `&at=${at}`)

export interface LogLines {
  readonly first: number
  readonly total: number
  readonly lines: readonly string[]
}

export interface LogMatches {
  readonly matches: readonly { readonly line: number; readonly text: string }[]
  /** Lines of the whole log. */
  readonly total: number
  readonly next: number | null
}

export interface RunBody {
  readonly trace_id: string
  readonly gpus: readonly string[]
  readonly simulator: string
  readonly refine?: { readonly simulator: string }
}

export async function ask<Answer>(path: string, body?: object): Promise<Answer> {
  const request: RequestInit =
    body === undefined
      ? {}
      : { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }
  let response: Response
  try {
    response = await fetch(path, { ...request, credentials: 'same-origin' })
  } catch {
    throw new Refusal('The server does not answer. Is `cascade serve` still running?', 0)
  }
  const text = await response.text()
  if (!response.ok) throw new Refusal(sentenceOf(text, response.status), response.status)
  return JSON.parse(text) as Answer
}

export interface UploadOptions {
  readonly name: string
  readonly model: string
  readonly source_gpu: string
  readonly prompts: string
  readonly routing: string
}

/** Send files as one trace; `fetch` cannot tell how far it is, so this is the older way. */
export function upload(
  files: readonly File[],
  options: UploadOptions,
  onProgress: (sentBytes: number) => void,
): { readonly traceId: Promise<string>; readonly cancel: () => void } {
  const form = new FormData()
  for (const [field, value] of Object.entries(options)) if (value) form.append(field, String(value))
  for (const file of files) form.append('files', file, file.name)
  const request = new XMLHttpRequest()
  const traceId = new Promise<string>((resolve, reject) => {
    request.upload.onprogress = (event) => onProgress(event.loaded)
    request.onload = () => {
      if (request.status === 202) resolve((JSON.parse(request.responseText) as { trace_id: string }).trace_id)
      else reject(new Refusal(sentenceOf(request.responseText, request.status), request.status))
    }
    request.onerror = () => reject(new Refusal('The upload was cut off. Try again.', 0))
    request.onabort = () => reject(new Refusal('The upload was cancelled.', 0))
  })
  request.open('POST', '/api/traces')
  request.send(form)
  return { traceId, cancel: () => request.abort() }
}

function sentenceOf(text: string, status: number): string {
  try {
    return (JSON.parse(text) as { error: string }).error
  } catch {
    return `The server answered ${status}.`
  }
}
