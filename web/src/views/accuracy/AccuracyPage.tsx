import { useQuery } from '@tanstack/react-query'
import { getRouteApi } from '@tanstack/react-router'
import { useMemo, useState } from 'react'
import { count, MISSING } from '../../lib/format'
import { screens, type ErrorMap } from '../../lib/screens'
import { DataTable, type Column } from '../DataTable'
import { Page } from '../Page'
import { Problem } from '../Problem'
import { Empty, Loading } from '../States'
import type { Sort } from '../sorting'
import styles from './AccuracyPage.module.css'

const route = getRouteApi('/accuracy')

/** The error map of this build: every op, every pair of GPUs, on rows that no constant was fitted to. */
export function AccuracyPage() {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const map = useQuery({ queryKey: ['accuracy'], queryFn: screens.errorMap, staleTime: Infinity })
  const [open, setOpen] = useState(0)
  const section = map.data?.sections[open]
  return (
    <Page
      title="Accuracy of this build"
      actions={
        <input
          className="field"
          type="search"
          aria-label="Filter rows"
          placeholder="Filter by op, GPU, variant"
          value={search.q ?? ''}
          onChange={(event) => void navigate({ search: (before) => ({ ...before, q: event.target.value || undefined }), replace: true })}
        />
      }
    >
      {map.error && <Problem error={map.error} onRetry={() => void map.refetch()} />}
      {map.isPending && <Loading words="Error map" rows={12} height={480} />}
      {map.data && (
        <>
          <p className={styles.about}>{map.data.about}</p>
          <div className={styles.tabs} role="tablist" aria-label="Of the error map">
            {map.data.sections.map(({ title }, index) => (
              <button key={title} type="button" role="tab" aria-selected={index === open} aria-controls="section" id={`tab-${index}`} onClick={() => setOpen(index)}>
                {title}
              </button>
            ))}
          </div>
        </>
      )}
      {section && (
        <div id="section" role="tabpanel" aria-labelledby={`tab-${open}`} className={styles.section} key={section.title}>
          {section.tables.map((table, index) => (
            <ErrorTable key={index} label={section.title} table={table} filter={search.q ?? ''} />
          ))}
          {section.text !== '' && <p className={styles.about}>{section.text}</p>}
        </div>
      )}
    </Page>
  )
}

type Table = ErrorMap['sections'][number]['tables'][number]
type Row = Table['rows'][number]

const ERRORS = new Set(['form', 'median', 'mean', 'p90', 'with table', 'roofline', 'ratio', 'bias'])

function ErrorTable({ label, table, filter }: { readonly label: string; readonly table: Table; readonly filter: string }) {
  const [sort, setSort] = useState<Sort | undefined>(undefined)
  const rows = useMemo(() => {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean)
    return table.rows.filter((row) => words.every((word) => row.some((cell) => typeof cell === 'string' && cell.toLowerCase().includes(word))))
  }, [table, filter])
  const columns = useMemo(() => table.columns.map((name, index) => columnOf(table, name, index)), [table])
  return (
    <>
      <p className={styles.about}>{table.text}</p>
      <p className={styles.count}>{rows.length === table.rows.length ? `${count(rows.length)} rows` : `${count(rows.length)} of ${count(table.rows.length)} rows`}</p>
      <div className={`panel ${styles.table}`}>
        <DataTable label={label} rows={rows} columns={columns} keyOf={(row) => String(table.rows.indexOf(row))} sort={sort} onSort={setSort} maxHeight={620} empty={<Empty>No row matches.</Empty>} />
      </div>
    </>
  )
}

function columnOf(table: Table, name: string, index: number): Column<Row> {
  const isNumber = table.rows.some((row) => typeof row[index] === 'number')
  const isError = ERRORS.has(name)
  const missed = new Set(table.missed.flatMap(([row, column]) => (column === index ? [table.rows[row]] : [])))
  return {
    id: `${index} ${name}`,
    title: name,
    ...(isError || name === 'covered' ? { unit: '%' } : {}),
    width: isNumber ? (name.length > 10 ? 136 : 96) : 168,
    grows: !isNumber,
    isNumber,
    isSticky: index === 0,
    sortBy: (row) => row[index] ?? null,
    cell: (row) => {
      const cell = row[index] ?? null
      if (cell === null) return MISSING
      if (typeof cell === 'string') return cell
      if (missed.has(row)) return <Missed value={cell} />
      return isError ? <Heat value={cell} /> : name === 'n' ? count(cell) : cell.toFixed(1)
    },
  }
}

function Missed({ value }: { readonly value: number }) {
  return (
    <strong className={styles.missed} title="misses its aim">
      {value.toFixed(1)}
    </strong>
  )
}

/** The larger, the more orange: 10 % half, 30 % full. The number stands beside it in any case. */
function Heat({ value }: { readonly value: number }) {
  const strength = Math.min(48, Math.abs(value) * 1.6)
  return (
    <span className={styles.heat} style={{ background: `color-mix(in srgb, var(--error-p20) ${strength.toFixed(0)}%, transparent)` }}>
      {value.toFixed(1)}
    </span>
  )
}
