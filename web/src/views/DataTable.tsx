import { useVirtualizer } from '@tanstack/react-virtual'
import { memo, useLayoutEffect, useMemo, useRef, useState, type CSSProperties, type KeyboardEvent, type ReactNode } from 'react'
import { ink, onTheme, type Ink } from '../lib/colours'
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
  /** The colour of its words: a token of the diverging scale, towards the text's colour as far as small letters need it. */
  readonly tone?: (row: Row) => string | undefined
  /**
   * Drawn over the cells, on one canvas for the whole column, in a box as high as the row; what it shows is said in words
   * by `cell`.
   */
  readonly paint?: (context: CanvasRenderingContext2D, row: Row, box: Box, inked: Ink) => void
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

const HURRIED_ROWS = 6 // that a frame scrolls by: nobody reads cells then

/** A table of any length: only what is in view exists, its head and first column stay, each column sorts. */
export function DataTable<Row>(props: Props<Row>) {
  const { label, rows, columns, keyOf, rowPx = 28, sort, onSort, selected, onRow, maxHeight, empty } = props
  const scroller = useRef<HTMLDivElement>(null)
  const before = useRef(0)
  const [isHurried, setHurried] = useState(false)
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
    onChange: ({ scrollOffset, isScrolling }) => {
      const moved = Math.abs((scrollOffset ?? 0) - before.current)
      before.current = scrollOffset ?? 0
      setHurried(isScrolling && moved > HURRIED_ROWS * rowPx)
    },
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
              isHurried={isHurried}
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
  isHurried,
  onRow,
}: {
  readonly row: Row
  readonly index: number
  readonly columns: readonly Column<Row>[]
  readonly frame: CSSProperties
  readonly top: number
  readonly rowPx: number
  readonly isSelected: boolean
  readonly isHurried: boolean
  readonly onRow: ((row: Row) => void) | undefined
}) {
  // A row that comes by in a hurry has its first cell and what is painted; the rest comes when there is time to read it.
  const [isWhole, setWhole] = useState(!isHurried)
  if (!isWhole && !isHurried) setWhole(true)
  return (
    <div
      role="row"
      aria-rowindex={index + 2}
      aria-selected={onRow === undefined ? undefined : isSelected}
      className={`${styles.row} ${isSelected ? styles.selected : ''} ${onRow ? styles.pressable : ''}`}
      style={{ ...frame, height: rowPx, top }}
      onClick={onRow && (() => onRow(row))}
    >
      <Cells row={row} index={index} columns={columns} isWhole={isWhole} />
    </div>
  )
}

const Cells = memo(CellsOf) as typeof CellsOf

function CellsOf<Row>({
  row,
  index,
  columns,
  isWhole,
}: {
  readonly row: Row
  readonly index: number
  readonly columns: readonly Column<Row>[]
  readonly isWhole: boolean
}): ReactNode {
  return (isWhole ? columns : columns.slice(0, 1)).map((column) => (
    <div
      key={column.id}
      role={column.isSticky ? 'rowheader' : 'cell'}
      className={`${styles.cell} ${column.isNumber ? styles.number : ''} ${column.isSticky ? styles.sticky : ''}`}
      data-tone={column.tone?.(row)}
    >
      {column.cell(row, index)}
    </div>
  ))
}

const PADDING_PX = 12
const ROWS_PER_CANVAS_STEP = 16 // a canvas that keeps its size is only cleared

/** Where a painted column is, and what its theme's colours are. */
interface Surface {
  readonly left: number
  readonly width: number
  readonly inked: Ink
}

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
  const [surface, setSurface] = useState<Surface | null>(null)
  const height = Math.ceil(rows.length / ROWS_PER_CANVAS_STEP) * ROWS_PER_CANVAS_STEP * rowPx
  // Looked at when it changes, never while rows go by: to ask where something is makes the browser lay out all that is new.
  useLayoutEffect(() => {
    const head = canvas.current?.closest('[role=table]')?.querySelector('[role=row]')?.children[place]
    if (!(head instanceof HTMLElement)) return undefined
    const look = () => setSurface({ left: head.offsetLeft + PADDING_PX, width: Math.max(1, head.offsetWidth - 2 * PADDING_PX), inked: ink() })
    const resized = new ResizeObserver(look)
    resized.observe(head)
    const unwatch = onTheme(look)
    return () => {
      resized.disconnect()
      unwatch()
    }
  }, [place])
  useLayoutEffect(() => {
    const context = canvas.current?.getContext('2d')
    if (canvas.current === null || context == null || surface === null) return
    const ratio = window.devicePixelRatio
    const pixels = { width: Math.round(surface.width * ratio), height: Math.max(1, Math.round(height * ratio)) }
    if (canvas.current.width !== pixels.width || canvas.current.height !== pixels.height) Object.assign(canvas.current, pixels)
    context.setTransform(ratio, 0, 0, ratio, 0, 0)
    context.clearRect(0, 0, surface.width, height)
    rows.forEach((row, at) => paint(context, row, { x: 0, y: at * rowPx, width: surface.width, height: rowPx }, surface.inked))
  }, [paint, rows, rowPx, height, surface])
  return <canvas ref={canvas} className={styles.painted} style={{ left: surface?.left ?? 0, top, width: surface?.width ?? 0, height }} aria-hidden="true" />
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
