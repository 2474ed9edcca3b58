import { useVirtualizer } from '@tanstack/react-virtual'
import { memo, useLayoutEffect, useMemo, useRef, type CSSProperties, type KeyboardEvent, type ReactNode } from 'react'
import type { Box } from './charts/sparkline'
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
  /** Drawn over the cells, on one canvas for the whole column; what it shows is said in words by `cell`. */
  readonly paint?: (context: CanvasRenderingContext2D, row: Row, box: Box) => void
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
  const items = virtual.getVirtualItems()
  const first = items[0]
  const painted = columns.flatMap(({ id, paint }, place) => (paint === undefined ? [] : [{ id, paint, place }]))
  const least = columns.reduce((sum, { width }) => sum + width, 0)
  const frame = useMemo<CSSProperties>(() => {
    const widths = columns.map(({ width, grows }) => (grows ? `minmax(${width}px, 1fr)` : `${width}px`))
    return { gridTemplateColumns: widths.join(' '), minWidth: least }
  }, [columns, least])

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
        {painted.map(({ id, paint, place }) => (
          <PaintedColumn key={id} paint={paint} place={place} rows={shown.slice(first?.index ?? 0, (items.at(-1)?.index ?? -1) + 1)} top={first?.start ?? 0} rowPx={rowPx} />
        ))}
        {items.map(({ index, start }) => {
          const row = shown[index]
          if (row === undefined) return null
          const key = keyOf(row)
          return (
            <DataRow
              key={key}
              row={row}
              index={index}
              columns={columns}
              frame={frame}
              top={start}
              rowPx={rowPx}
              isSelected={key === selected}
              onRow={onRow}
            />
          )
        })}
      </div>
    </div>
  )
}

/** Remembered: while the table scrolls, a row that stays in view is not made again. */
const DataRow = memo(RowOf) as typeof RowOf

function RowOf<Row>({
  row,
  index,
  columns,
  frame,
  top,
  rowPx,
  isSelected,
  onRow,
}: {
  readonly row: Row
  readonly index: number
  readonly columns: readonly Column<Row>[]
  readonly frame: CSSProperties
  readonly top: number
  readonly rowPx: number
  readonly isSelected: boolean
  readonly onRow: ((row: Row) => void) | undefined
}) {
  return (
    <div
      role="row"
      aria-rowindex={index + 2}
      aria-selected={onRow === undefined ? undefined : isSelected}
      className={`${styles.row} ${isSelected ? styles.selected : ''} ${onRow ? styles.pressable : ''}`}
      style={{ ...frame, height: rowPx, transform: `translateY(${top}px)` }}
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
}

const PAINTED_PX = 16
const PADDING_PX = 12

/** One canvas over a column's cells in view: a thousand small drawings without a thousand elements. */
function PaintedColumn<Row>({
  paint,
  place,
  rows,
  top,
  rowPx,
}: {
  readonly paint: NonNullable<Column<Row>['paint']>
  /** Of the column, from 0. */
  readonly place: number
  readonly rows: readonly Row[]
  readonly top: number
  readonly rowPx: number
}) {
  const canvas = useRef<HTMLCanvasElement>(null)
  useLayoutEffect(() => {
    const drawn = canvas.current
    const head = drawn?.closest('[role=table]')?.querySelector('[role=row]')?.children[place]
    if (drawn == null || !(head instanceof HTMLElement)) return undefined
    const draw = () => {
      const ratio = window.devicePixelRatio
      const [width, height] = [Math.max(1, head.offsetWidth - 2 * PADDING_PX), Math.max(1, rows.length * rowPx)]
      drawn.style.cssText = `left:${head.offsetLeft + PADDING_PX}px;top:${top}px;width:${width}px;height:${height}px`
      drawn.width = Math.round(width * ratio)
      drawn.height = Math.round(height * ratio)
      const context = drawn.getContext('2d')
      if (context === null) return
      context.scale(ratio, ratio)
      context.fillStyle = getComputedStyle(drawn).color
      rows.forEach((row, at) => paint(context, row, { x: 0, y: at * rowPx + (rowPx - PAINTED_PX) / 2, width, height: PAINTED_PX }))
    }
    draw()
    const resized = new ResizeObserver(draw)
    resized.observe(head)
    const themed = new MutationObserver(draw)
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] })
    return () => {
      resized.disconnect()
      themed.disconnect()
    }
  }, [paint, place, rows, top, rowPx])
  return <canvas ref={canvas} className={styles.painted} aria-hidden="true" />
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
