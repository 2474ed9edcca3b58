import { ALIGNMENTS, COLOURS } from '../canvas/protocol'

/** What each page's address may say. Whatever else it says is left alone and means nothing. */
type Raw = Record<string, unknown>
type Some<Fields> = { readonly [Name in keyof Fields]?: Exclude<Fields[Name], undefined> | undefined }

/** Only what is there: absent fields stay out of the address. */
function present<Fields extends Raw>(fields: Fields): Some<Fields> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Some<Fields>
}

const text = (value: unknown): string | undefined => (typeof value === 'string' && value !== '' ? value : undefined)
const texts = (value: unknown): readonly string[] | undefined => (value === undefined ? undefined : [value].flat().map(String))
const number = (value: unknown): number | undefined => {
  const found = Number(value)
  return value === undefined || value === '' || !Number.isFinite(found) ? undefined : found
}
const whole = (value: unknown): number | undefined => {
  const found = number(value)
  return found !== undefined && Number.isInteger(found) && found >= 0 ? found : undefined
}
const flag = (value: unknown): true | undefined => (value === '1' || value === true || value === 1 ? true : undefined)
const among = <Choice extends string>(value: unknown, choices: readonly Choice[]): Choice | undefined =>
  choices.find((choice) => choice === value)

export const rootSearch = (raw: Raw) => present({ theme: among(raw.theme, ['dark', 'light'] as const), wall: flag(raw.wall), perf: flag(raw.perf) })

export const homeSearch = (raw: Raw) =>
  present({ q: text(raw.q), status: text(raw.status), prov: text(raw.prov), sort: text(raw.sort), desc: flag(raw.desc) })

export const newRunSearch = (raw: Raw) => present({ trace: text(raw.trace), gpu: texts(raw.gpu), sim: text(raw.sim) })

export const listSearch = (raw: Raw) => present({ q: text(raw.q), sort: text(raw.sort), desc: flag(raw.desc) })

export const traceSearch = (raw: Raw) => present({ tab: among(raw.tab, ['quality', 'steps', 'signatures'] as const) })

/** Of every tab of a run. `at`: a position of its log, everything as known at that moment; absent: now. */
export const runSearch = (raw: Raw) => present({ at: whole(raw.at), cfg: text(raw.cfg) })

/** `log`: the config (by label) whose log is shown; absent: the first. */
export const liveSearch = (raw: Raw) => present({ log: text(raw.log), line: whole(raw.line), q: text(raw.q) })

/**
 * t0, t1, ph: ns of simulated time. sel: `A.88112`, config letter and row; area: `t0-t1`; pins: `A.0,B.1`, letter and lane.
 * step: to go to; it leaves the address for the times that it stands for.
 */
export const timelineSearch = (raw: Raw) =>
  present({
    t0: number(raw.t0),
    t1: number(raw.t1),
    ph: number(raw.ph),
    sel: text(raw.sel),
    area: text(raw.area),
    align: among(raw.align, ALIGNMENTS),
    color: among(raw.color, COLOURS),
    q: text(raw.q),
    lanes: text(raw.lanes),
    pins: text(raw.pins),
    step: whole(raw.step),
    flags: text(raw.flags),
    loop: text(raw.loop),
    speed: number(raw.speed),
    base: text(raw.base),
    twin: flag(raw.twin),
  })

export const kernelsSearch = (raw: Raw) =>
  present({
    by: among(raw.by, ['signature', 'family'] as const),
    sort: text(raw.sort),
    desc: flag(raw.desc),
    cols: text(raw.cols),
    q: text(raw.q),
    k: text(raw.k),
    why: text(raw.why),
  })

export const predictionsSearch = (raw: Raw) =>
  present({ ctx: number(raw.ctx), batch: number(raw.batch), osl: number(raw.osl), metric: text(raw.metric) })

/** set: `dram_gbps:6000,sm:160` */
export const whatIfSearch = (raw: Raw) => present({ base: text(raw.base), set: text(raw.set), metric: text(raw.metric) })

export const accuracySearch = (raw: Raw) => present({ family: text(raw.family), why: text(raw.why), q: text(raw.q) })

/** v: `run.config`, two to eight of them. */
export const compareSearch = (raw: Raw) =>
  present({
    v: texts(raw.v),
    base: text(raw.base),
    align: among(raw.align, ALIGNMENTS),
    diff: flag(raw.diff),
    sort: text(raw.sort),
    desc: flag(raw.desc),
    q: text(raw.q),
    t0: number(raw.t0),
    t1: number(raw.t1),
  })

export const sqlSearch = (raw: Raw) => present({ q: text(raw.q), view: among(raw.view, ['grid', 'chart'] as const), saved: text(raw.saved) })

// --- the address itself -----------------------------------------------------------------------------------------------

/** Plain names and values, a list as a repeated name: an address that people can read and write. */
export function parseSearch(search: string): Raw {
  const found: Record<string, string | string[]> = {}
  for (const [name, value] of new URLSearchParams(search)) {
    const before = found[name]
    found[name] = before === undefined ? value : [before, value].flat()
  }
  return found
}

export function stringifySearch(search: Raw): string {
  const pairs = Object.entries(search).flatMap(([name, value]) => {
    if (value === undefined || value === null || value === false) return []
    return [value].flat().map((one: unknown) => [name, one === true ? '1' : (one as string | number).toString()] as const)
  })
  const said = pairs.map(([name, value]) => `${encodeURIComponent(name)}=${readable(value)}`).join('&')
  return said === '' ? '' : `?${said}`
}

/** Encoded, save for signs that an address may hold as they are and that ours are full of. */
const readable = (value: string): string => encodeURIComponent(value).replace(/%(3A|2C|2F|7E|40)/g, (code) => decodeURIComponent(code))
