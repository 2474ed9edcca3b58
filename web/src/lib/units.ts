/** Numbers that know their unit: a duration in nanoseconds is not one in milliseconds, and does not compile as one. */
declare const unit: unique symbol
type Branded<Unit extends string> = number & { readonly [unit]: Unit }

export type Ns = Branded<'ns'>
export type Ms = Branded<'ms'>
/** Milliseconds since the epoch, as the log keeps them. */
export type LogMs = Branded<'log ms'>
export type Ratio = Branded<'ratio'>
/** Index of a record in a run's replay order. */
export type Position = Branded<'position'>

export const ns = (value: number): Ns => value as Ns
export const ms = (value: number): Ms => value as Ms
export const logMs = (value: number): LogMs => value as LogMs
export const ratio = (value: number): Ratio => value as Ratio
export const position = (value: number): Position => value as Position

export const msOfNs = (value: Ns): Ms => (value / 1e6) as Ms
export const ratioOfPpm = (value: number): Ratio => (value / 1e6) as Ratio

/** A predicted time and between which bounds it is expected in 8 of 10 cases. */
export interface Estimate {
  readonly value: Ms
  readonly p10: Ms
  readonly p90: Ms
}
