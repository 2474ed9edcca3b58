/** What is not there (null, NaN) stands last, whichever way a column is sorted. */
export type SortKey = number | string | null

export interface Sort {
  readonly by: string
  readonly isDescending: boolean
}

/** A new array; rows with equal keys keep their order. */
export function sortedRows<Row>(rows: readonly Row[], by: (row: Row) => SortKey, isDescending: boolean): readonly Row[] {
  const keys = rows.map(by)
  const direction = isDescending ? -1 : 1
  const order = keys.map((_, index) => index)
  order.sort((a, b) => compared(keys[a] ?? null, keys[b] ?? null, direction) || a - b)
  return order.map((index) => rows[index] as Row)
}

const collator = new Intl.Collator('en', { numeric: true })

function compared(a: SortKey, b: SortKey, direction: 1 | -1): number {
  const [isAGone, isBGone] = [isGone(a), isGone(b)]
  if (isAGone || isBGone) return Number(isAGone) - Number(isBGone)
  if (typeof a === 'number' && typeof b === 'number') return (a - b) * direction
  return collator.compare(String(a), String(b)) * direction
}

const isGone = (key: SortKey): boolean => key === null || Number.isNaN(key)
