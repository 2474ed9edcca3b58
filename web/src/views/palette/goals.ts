/** What is typed after a colon: a time, a step, a launch, or a place of the log. */
export type Goal =
  | { readonly kind: 'time'; readonly ns: number; readonly words: string }
  | { readonly kind: 'step'; readonly step: number; readonly words: string }
  | { readonly kind: 'launch'; readonly row: number; readonly words: string }
  | { readonly kind: 'offset'; readonly at: number; readonly words: string }

const NS: Readonly<Record<string, number>> = { ns: 1, us: 1e3, µs: 1e3, ms: 1e6, s: 1e9 }

/** `12.4ms`, `step 120`, `launch 88112` (or `seq`), `offset 40211`; null: not understood. */
export function goalOf(typed: string): Goal | null {
  const text = typed.trim().toLowerCase()
  const time = /^([\d.]+)\s*(ns|us|µs|ms|s)$/.exec(text)
  if (time !== null && Number.isFinite(Number(time[1]))) {
    return { kind: 'time', ns: Number(time[1]) * (NS[time[2] ?? ''] ?? 1), words: `Simulated time ${time[1] ?? ''} ${time[2] ?? ''}` }
  }
  const place = /^(step|seq|launch|offset)\s+(\d+)$/.exec(text)
  if (place === null) return null
  const number = Number(place[2])
  if (place[1] === 'step') return { kind: 'step', step: number, words: `Step ${number}` }
  return place[1] === 'offset'
    ? { kind: 'offset', at: number, words: `What was known at record ${number} of the log` }
    : { kind: 'launch', row: number, words: `Launch ${number}` }
}

/** What a first sign narrows a search to. */
export type Scope = 'all' | 'commands' | 'runs' | 'gpus' | 'go'

const SCOPES: Readonly<Record<string, Scope>> = { '>': 'commands', '#': 'runs', '@': 'gpus', ':': 'go' }

export function scopeOf(typed: string): { readonly scope: Scope; readonly text: string } {
  const scope = SCOPES[typed[0] ?? '']
  return scope === undefined ? { scope: 'all', text: typed } : { scope, text: typed.slice(1).trimStart() }
}
