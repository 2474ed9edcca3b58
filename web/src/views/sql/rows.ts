import { tableFromIPC } from 'apache-arrow'

/** The rows of a statement by column; numbers, words, truth, or nothing. */
export type Cell = number | string | boolean | null

export interface Rows {
  readonly names: readonly string[]
  readonly isNumber: readonly boolean[]
  readonly count: number
  readonly cell: (column: number, row: number) => Cell
}

export function rowsOf(bytes: Uint8Array): Rows {
  const table = tableFromIPC(bytes)
  const columns = table.schema.fields.map(({ name }) => table.getChild(name))
  return {
    names: table.schema.fields.map(({ name }) => name),
    isNumber: table.schema.fields.map(({ type }) => String(type).startsWith('Float')),
    count: table.numRows,
    cell: (column, row) => (columns[column]?.get(row) ?? null) as Cell,
  }
}

export interface Bars {
  readonly name: string
  readonly by: string
  readonly bars: readonly { readonly label: string; readonly value: number }[]
  readonly leftOut: number
}

const BARS_SHOWN = 40

/** The first column of numbers over the first other one; null where there is no such pair. */
export function barsOf(rows: Rows): Bars | null {
  const number = rows.isNumber.findIndex((is) => is)
  const by = rows.isNumber.findIndex((is) => !is)
  if (number < 0 || by < 0 || rows.count === 0) return null
  const others = rows.names.map((_, column) => column).filter((column) => rows.isNumber[column] !== true).slice(0, 2)
  const bars = Array.from({ length: Math.min(rows.count, BARS_SHOWN) }, (_, row) => ({
    label: others.map((column) => String(rows.cell(column, row) ?? '–')).join(' · '),
    value: Number(rows.cell(number, row) ?? Number.NaN),
  })).filter(({ value }) => Number.isFinite(value))
  return { name: rows.names[number] ?? '', by: others.map((column) => rows.names[column]).join(', '), bars, leftOut: rows.count - bars.length }
}
