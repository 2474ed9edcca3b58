import { readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import { decodeFrame, type FeedRecord } from '../feed/frames'

/** Recorded runs, for tests: what /ws sent, and what the server's own fold of it says. */
export const GOLDEN = ['recorded-on-cpu', 'measured'] as const

export function goldenRecords(name: string): readonly FeedRecord[] {
  const whole = gunzipSync(readFileSync(new URL(`./golden/${name}.frames.gz`, import.meta.url)))
  const records: FeedRecord[] = []
  for (let at = 0; at < whole.length; ) {
    const size = whole.readUInt32LE(at)
    records.push(...decodeFrame(new Uint8Array(whole.subarray(at + 4, at + 4 + size))))
    at += 4 + size
  }
  return records
}

interface ReportedEstimate {
  readonly value: number
  readonly p10: number
  readonly p90: number
}

export interface ReportedConfig {
  readonly gpu: string
  readonly kernel_time_ms: number
  readonly kernel_time_interval_ms: { readonly p10: number; readonly p90: number }
  readonly prefill_step_ms: ReportedEstimate | null
  readonly decode_step_ms: ReportedEstimate | null
  readonly ttft_ms: ReportedEstimate | null
  readonly tpot_ms: ReportedEstimate | null
  readonly coverage: number
  readonly error: { readonly weighted_error: number; readonly total_error: number } | null
  readonly assumptions: readonly string[]
}

export interface Report {
  readonly run_id: string
  readonly status: string
  readonly state_hash: string
  readonly trace: { readonly name: string; readonly provenance: string; readonly source_gpu: string | null }
  readonly configs: readonly ReportedConfig[]
  readonly source: ReportedConfig | null
}

export function goldenReport(name: string): Report {
  return JSON.parse(readFileSync(new URL(`./golden/${name}.report.json`, import.meta.url), 'utf8')) as Report
}
