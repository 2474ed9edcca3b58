import { useVirtualizer } from '@tanstack/react-virtual'
import { useMemo, useRef, type CSSProperties, type KeyboardEvent, type ReactNode } from 'react'
import styles from './DataTable.module.css'
import { sortedRows, type Sort, type SortKey } from './sorting'

export interface Column<Row> {
  readonly id: string
  readonly title: string
  /** One unit for the whole column, beside its title. */
  readonly unit?: string
  /** Pixels; with `grows` the least of them. */
  readonly width: number
  readonly grows?: boolean
  readonly isNumber?: boolean
  /** Stays in view when the table is scrolled sideways. Only the first one may. */
  readonly isSticky?: boolean
  readonly cell: (row: Row, index: number) => ReactNode
  /** What it is sorted by; a column without cannot be. */
  readonly sortBy?: (row: Row) => SortKey
  /** Longer words on hover. */
  readonly hint?: string
}

interface Props<Row> {
  readonly label: string
  readonly rows: readonly Row[]
  readonly columns: readonly Column<Row>[]
  readonly keyOf: (row: Row) => string
  readonly rowPx?: number
  readonly sort?: Sort | undefined
  readonly onSort?: (sort: Sort) => void
  readonly selected?: string | undefined
  /** A click on a row, or Enter on the selected one. */
  readonly onRow?: (row: Row) => void
  /** Pixels beyond which it scrolls; absent: as high as its place. */
  readonly maxHeight?: number
  readonly empty?: ReactNode
}

/** A table of any length: only what is in view exists, its head and first column stay, each column sorts. */
export function DataTable<Row>(props: Props<Row>) {
  const { label, rows, columns, keyOf, rowPx = 28, sort, onSort, selected, onRow, maxHeight, empty } = props
  const scroller = useRef<HTMLDivElement>(null)
  const shown = useMemo(() => {
    const by = columns.find(({ id }) => id === sort?.by)?.sortBy
    return sort === undefined || by === undefined ? rows : sortedRows(rows, by, sort.isDescending)
  }, [rows, columns, sort])
  // The library's functions change with every call by design; nothing here remembers them.
  // eslint-disable-next-line react-hooks/incompatible-library
  const virtual = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowPx,
    overscan: 12,
  })
  const template = columns.map(({ width, grows }) => (grows ? `minmax(${width}px, 1fr)` : `${width}px`)).join(' ')
  const least = columns.reduce((sum, { width }) => sum + width, 0)
  const frame: CSSProperties = { gridTemplateColumns: template, minWidth: least }

  const onKey = (event: KeyboardEvent) => {
    if (onRow === undefined || !['ArrowDown', 'ArrowUp', 'Home', 'End'].includes(event.key)) return
    const at = shown.findIndex((row) => keyOf(row) === selected)
    const to =
      event.key === 'Home' ? 0 : event.key === 'End' ? shown.length - 1 : at + (event.key === 'ArrowDown' ? 1 : -1)
    const row = shown[to]
    if (row === undefined) return
    event.preventDefault()
    virtual.scrollToIndex(to)
    onRow(row)
  }

  return (
    <div
      ref={scroller}
      className={styles.scroller}
      style={maxHeight === undefined ? undefined : { maxHeight }}
      role="table"
      aria-label={label}
      aria-rowcount={shown.length + 1}
      tabIndex={0}
      onKeyDown={onKey}
    >
      <div role="rowgroup" className={styles.headGroup} style={{ minWidth: least }}>
        <div role="row" aria-rowindex={1} className={styles.head} style={frame}>
          {columns.map((column) => (
            <Head key={column.id} column={column} sort={sort} onSort={onSort} />
          ))}
        </div>
      </div>
      {shown.length === 0 && empty}
      <div role="rowgroup" className={styles.body} style={{ height: virtual.getTotalSize(), minWidth: least }}>
        {virtual.getVirtualItems().map(({ index, start }) => {
          const row = shown[index]
          if (row === undefined) return null
          const key = keyOf(row)
          return (
            <div
              key={key}
              role="row"
              aria-rowindex={index + 2}
              aria-selected={onRow === undefined ? undefined : key === selected}
              className={`${styles.row} ${key === selected ? styles.selected : ''} ${onRow ? styles.pressable : ''}`}
              style={{ ...frame, height: rowPx, transform: `translateY(${start}px)` }}
              onClick={onRow && (() => onRow(row))}
            >
              {columns.map((column) => (
                <div
                  key={column.id}
                  role={column.isSticky ? 'rowheader' : 'cell'}
                  className={`${styles.cell} ${column.isNumber ? styles.number : ''} ${column.isSticky ? styles.sticky : ''}`}
                >
                  {column.cell(row, index)}
                </div>
              ))}
            </div>
          )
        })}
      </div>
    </div>
  )
}

function Head<Row>({
  column,
  sort,
  onSort,
}: {
  readonly column: Column<Row>
  readonly sort: Sort | undefined
  readonly onSort: ((sort: Sort) => void) | undefined
}) {
  const isSorted = sort?.by === column.id
  const words = (
    <>
      {column.title}
      {column.unit !== undefined && <span className={styles.unit}>, {column.unit}</span>}
    </>
  )
  return (
    <div
      role="columnheader"
      aria-sort={isSorted ? (sort.isDescending ? 'descending' : 'ascending') : column.sortBy ? 'none' : undefined}
      className={`${styles.cell} ${column.isNumber ? styles.number : ''} ${column.isSticky ? styles.sticky : ''}`}
      title={column.hint}
    >
      {column.sortBy && onSort ? (
        <button
          type="button"
          className={styles.sort}
          // Numbers are looked at from the largest down, words from A on.
          onClick={() => onSort({ by: column.id, isDescending: isSorted ? !sort.isDescending : column.isNumber === true })}
        >
          {words}
          <span className={styles.arrow} aria-hidden="true">
            {isSorted ? (sort.isDescending ? '↓' : '↑') : ''}
          </span>
        </button>
      ) : (
        words
      )}
    </div>
  )
}
