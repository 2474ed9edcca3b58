import { useMutation, useQuery } from '@tanstack/react-query'
import { getRouteApi } from '@tanstack/react-router'
import { lazy, Suspense, useEffect, useMemo, useState } from 'react'
import { count, counted, digits, MISSING } from '../../lib/format'
import { screens, sqlExport, SqlRefusal, sqlTable } from '../../lib/screens'
import { StackedBars } from '../charts/StackedBars'
import { DataTable, type Column } from '../DataTable'
import { Problem } from '../Problem'
import { Empty, Loading } from '../States'
import type { Sort } from '../sorting'
import { barsOf, rowsOf, type Cell, type Rows } from './rows'
import { EXAMPLES, readBook, withoutSaved, withRun, withSaved, writeBook, type Book } from './saved'
import styles from './SqlPage.module.css'

const Editor = lazy(async () => ({ default: (await import('./Editor')).Editor }))
const route = getRouteApi('/sql')
const ADDRESS_LIMIT = 4000

/** Ask anything, safely: one SELECT over a copy of everything Cascade knows. */
export function SqlPage() {
  const search = route.useSearch()
  const navigate = route.useNavigate()
  const schema = useQuery({ queryKey: ['sql-schema'], queryFn: screens.sqlSchema, staleTime: Infinity })
  const [text, setText] = useState(search.q ?? EXAMPLES[0]?.sql ?? '')
  const [book, setBook] = useState<Book>(readBook)
  useEffect(() => writeBook(book), [book])
  const asked = useMutation({
    mutationFn: async (sql: string) => {
      const began = performance.now()
      const { bytes, isTruncated } = await sqlTable(sql)
      return { rows: rowsOf(bytes), isTruncated, elapsedMs: performance.now() - began, sql }
    },
    onMutate: (sql) => setBook((now) => withRun(now, sql)),
  })
  const run = () => {
    if (text.trim() === '' || asked.isPending) return
    void navigate({ search: (before) => ({ ...before, q: text.length <= ADDRESS_LIMIT ? text : undefined }), replace: true })
    asked.mutate(text)
  }
  const refusal = asked.error instanceof SqlRefusal && asked.variables === text ? asked.error : null
  const problem = useMemo(
    () => (refusal?.position == null ? null : { position: refusal.position }),
    [refusal],
  )
  const view = search.view ?? 'grid'
  const answer = asked.error === null ? asked.data : undefined
  return (
    <div className={styles.page}>
      <aside className={styles.side} aria-label="Tables and statements">
        <Schema schema={schema.data} onInsert={(word) => setText((now) => `${now}${now === '' || /\s$/.test(now) ? '' : ' '}${word}`)} />
        {schema.error && <Problem error={schema.error} onRetry={() => void schema.refetch()} />}
        <Statements book={book} onBook={setBook} onOpen={setText} text={text} />
      </aside>
      <div className={styles.main}>
        <h1 className="visually-hidden">SQL</h1>
        <div className={styles.editor}>
          <Suspense fallback={<Loading words="Editor" rows={4} height={180} />}>
            <Editor text={text} schema={schema.data} problem={problem} onText={setText} onRun={run} />
          </Suspense>
        </div>
        <div className={styles.bar}>
          <button type="button" className="button primary" onClick={run} disabled={asked.isPending || text.trim() === ''}>
            {asked.isPending ? 'Running…' : 'Run'} <kbd className={styles.key}>Ctrl Enter</kbd>
          </button>
          <p className={styles.status} role="status">
            {answer && (
              <>
                {counted(answer.rows.count, 'row')} in {Math.round(answer.elapsedMs)} ms
                {answer.isTruncated && <strong> · cut off: there are more; ask for less at once</strong>}
              </>
            )}
          </p>
          <div role="group" aria-label="Show as" className={styles.switch}>
            {(['grid', 'chart'] as const).map((one) => (
              <button
                key={one}
                type="button"
                className="button"
                aria-pressed={view === one}
                onClick={() => void navigate({ search: (before) => ({ ...before, view: one === 'grid' ? undefined : one }), replace: true })}
              >
                {one}
              </button>
            ))}
          </div>
          <Exports sql={text} />
        </div>
        {asked.error && <Refused error={asked.error} text={asked.variables} />}
        <div className={styles.result}>
          {answer && (view === 'grid' ? <Grid key={asked.submittedAt} rows={answer.rows} /> : <QuickChart rows={answer.rows} />)}
          {asked.isIdle && (
            <Empty>One SELECT over traces, runs, configs, kernels, simulations, families and steps. It runs on a copy, with limits of its own: nothing here can break anything.</Empty>
          )}
        </div>
      </div>
    </div>
  )
}

// --- side -------------------------------------------------------------------------------------------------------------

function Schema({ schema, onInsert }: { readonly schema: Awaited<ReturnType<typeof screens.sqlSchema>> | undefined; readonly onInsert: (word: string) => void }) {
  if (schema === undefined) return <Loading words="Tables" rows={6} height={180} />
  return (
    <section aria-labelledby="schema-title">
      <h2 id="schema-title">Tables</h2>
      {schema.tables.map((table) => (
        <details key={table.name} className={styles.table}>
          <summary title={table.about ?? undefined}>
            <code>{table.name}</code>
            <span>{table.columns.length}</span>
          </summary>
          <ul>
            {table.columns.map((column) => (
              <li key={column.name}>
                <button type="button" title={`${column.about ?? 'no more is said of it'} (${column.type.toLowerCase()})`} onClick={() => onInsert(column.name)}>
                  <code>{column.name}</code>
                  <span>{column.type.toLowerCase()}</span>
                </button>
              </li>
            ))}
          </ul>
        </details>
      ))}
    </section>
  )
}

interface StatementsProps {
  readonly book: Book
  readonly text: string
  readonly onBook: (change: (book: Book) => Book) => void
  readonly onOpen: (sql: string) => void
}

function Statements({ book, text, onBook, onOpen }: StatementsProps) {
  const [name, setName] = useState('')
  return (
    <>
      <section aria-labelledby="saved-title">
        <h2 id="saved-title">Saved</h2>
        <form
          className={styles.save}
          onSubmit={(event) => {
            event.preventDefault()
            if (name.trim() !== '') onBook((now) => withSaved(now, name.trim(), text))
            setName('')
          }}
        >
          <input className="field" aria-label="Name to save this statement under" placeholder="Save as…" value={name} onChange={(event) => setName(event.target.value)} />
          <button className="button" disabled={name.trim() === '' || text.trim() === ''}>
            Save
          </button>
        </form>
        <ul className={styles.list}>
          {[...book.saved, ...EXAMPLES].map((one, index) => (
            <li key={`${one.name} ${index}`}>
              <button type="button" onClick={() => onOpen(one.sql)} title={one.sql}>
                {one.name}
              </button>
              {index < book.saved.length && (
                <button type="button" aria-label={`Forget ${one.name}`} onClick={() => onBook((now) => withoutSaved(now, one.name))}>
                  ×
                </button>
              )}
            </li>
          ))}
        </ul>
      </section>
      {book.history.length > 0 && (
        <section aria-labelledby="history-title">
          <h2 id="history-title">History</h2>
          <ul className={styles.list}>
            {book.history.slice(0, 20).map((sql) => (
              <li key={sql}>
                <button type="button" onClick={() => onOpen(sql)} title={sql}>
                  <code>{sql.replace(/\s+/g, ' ').slice(0, 80)}</code>
                </button>
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  )
}

// --- answers ----------------------------------------------------------------------------------------------------------

function Exports({ sql }: { readonly sql: string }) {
  const file = useMutation({ mutationFn: (format: 'csv' | 'parquet') => sqlExport(sql, format) })
  return (
    <span className={styles.exports}>
      {(['csv', 'parquet'] as const).map((format) => (
        <button key={format} type="button" className="button" disabled={file.isPending || sql.trim() === ''} onClick={() => file.mutate(format)}>
          {format === 'csv' ? 'CSV' : 'Parquet'}
        </button>
      ))}
      {file.error && <span className={styles.failed} role="alert">{file.error.message}</span>}
    </span>
  )
}

/** What was refused, by which rule, and the place in the statement. */
function Refused({ error, text }: { readonly error: Error; readonly text: string | undefined }) {
  const refusal = error instanceof SqlRefusal ? error : null
  const position = refusal?.position ?? null
  return (
    <div className={styles.refused} role="alert" data-testid="refused">
      <p>
        {refusal !== null && refusal.rule !== '' && <span className="chip">{refusal.rule}</span>} {error.message}
      </p>
      {position !== null && text !== undefined && <Excerpt text={text} position={position} />}
    </div>
  )
}

function Excerpt({ text, position }: { readonly text: string; readonly position: number }) {
  const start = text.lastIndexOf('\n', Math.max(0, position - 1)) + 1
  const next = text.slice(position).search(/\n|$/)
  const end = position + next
  const word = /^\S+/.exec(text.slice(position, end))?.[0] ?? ''
  return (
    <code className={styles.excerpt}>
      {text.slice(start, position)}
      <mark>{word === '' ? ' ' : word}</mark>
      {text.slice(position + word.length, end)}
    </code>
  )
}

function Grid({ rows }: { readonly rows: Rows }) {
  const [sort, setSort] = useState<Sort | undefined>(undefined)
  const indexes = useMemo(() => Array.from({ length: rows.count }, (_, index) => index), [rows])
  const columns = useMemo(
    () =>
      rows.names.map((name, column): Column<number> => ({
        id: `${column} ${name}`,
        title: name,
        width: widthOf(rows, column),
        grows: rows.isNumber[column] !== true,
        isNumber: rows.isNumber[column] === true,
        isSticky: column === 0,
        sortBy: (row) => sortable(rows.cell(column, row)),
        cell: (row) => <span title={String(rows.cell(column, row) ?? 'null')}>{shown(rows.cell(column, row))}</span>,
      })),
    [rows],
  )
  if (rows.count === 0) return <Empty>No row matches.</Empty>
  return <DataTable label="Rows" rows={indexes} columns={columns} keyOf={String} sort={sort} onSort={setSort} />
}

const sortable = (cell: Cell) => (typeof cell === 'boolean' ? Number(cell) : cell)

/** Whole numbers whole, others at three digits; the full value is one hover away. */
function shown(cell: Cell): string {
  if (cell === null) return MISSING
  if (typeof cell !== 'number') return String(cell)
  return Number.isInteger(cell) ? count(cell) : digits(cell)
}

/** As wide as the longest of the first rows. */
function widthOf(rows: Rows, column: number): number {
  const longest = Array.from({ length: Math.min(rows.count, 100) }, (_, row) => shown(rows.cell(column, row)).length)
  return Math.min(420, Math.max(80, Math.max((rows.names[column] ?? '').length + 2, ...longest) * 7.4 + 28))
}

function QuickChart({ rows }: { readonly rows: Rows }) {
  const found = useMemo(() => barsOf(rows), [rows])
  if (found === null) return <Empty>A chart needs a column of numbers and one of words.</Empty>
  return (
    <div className={styles.chart}>
      <h2>
        {found.name} by {found.by}
      </h2>
      <StackedBars
        label={`${found.name} by ${found.by}`}
        stacks={found.bars.map(({ label, value }, index) => ({
          key: `${index}`,
          label,
          words: label,
          total: digits(value),
          parts: [{ key: found.name, word: found.name, token: 'accent', value, said: digits(value) }],
        }))}
      />
      {found.leftOut > 0 && <p>{counted(found.leftOut, 'row')} more are not drawn.</p>}
    </div>
  )
}
