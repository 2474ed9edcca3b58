/** Statements that this browser's user ran or kept. Nothing of it is the server's business. */
export interface Kept {
  readonly name: string
  readonly sql: string
}

export interface Book {
  readonly saved: readonly Kept[]
  /** Newest first, each once. */
  readonly history: readonly string[]
}

const KEY = 'cascade.sql'
const HISTORY_LIMIT = 50

export const EMPTY: Book = { saved: [], history: [] }

export const withRun = (book: Book, sql: string): Book => ({
  ...book,
  history: [sql.trim(), ...book.history.filter((one) => one !== sql.trim())].slice(0, HISTORY_LIMIT),
})

/** A name is used once: saving under it again replaces what it named. */
export const withSaved = (book: Book, name: string, sql: string): Book => ({
  ...book,
  saved: [...book.saved.filter((one) => one.name !== name), { name, sql: sql.trim() }].sort((a, b) => a.name.localeCompare(b.name)),
})

export const withoutSaved = (book: Book, name: string): Book => ({ ...book, saved: book.saved.filter((one) => one.name !== name) })

/** What a browser stored may be anything. */
export function parseBook(text: string | null): Book {
  try {
    const found = JSON.parse(text ?? '{}') as Partial<Book>
    return {
      saved: (found.saved ?? []).filter(({ name, sql }) => typeof name === 'string' && typeof sql === 'string'),
      history: (found.history ?? []).filter((sql) => typeof sql === 'string').slice(0, HISTORY_LIMIT),
    }
  } catch {
    return EMPTY
  }
}

export function readBook(): Book {
  try {
    return parseBook(localStorage.getItem(KEY))
  } catch {
    return EMPTY
  }
}

export function writeBook(book: Book): void {
  try {
    localStorage.setItem(KEY, JSON.stringify(book))
  } catch {
    // A browser without storage forgets with the tab.
  }
}

/** To begin with: questions whose answers the other pages do not show. */
export const EXAMPLES: readonly Kept[] = [
  {
    name: 'Fastest GPU of each run',
    sql: `select run_id, label, tpot_ns / 1e6 as tpot_ms, tpot_p10_ns / 1e6 as p10_ms, tpot_p90_ns / 1e6 as p90_ms
from configs
where is_requested and tpot_ns is not null
qualify row_number() over (partition by run_id order by tpot_ns) = 1
order by tpot_ms`,
  },
  {
    name: 'Where time goes',
    sql: `select label, family, sum(duration_ns * launch_count) / 1e6 as total_ms
from kernels
where is_requested
group by label, family
order by label, total_ms desc`,
  },
  {
    name: 'What waits for DRAM',
    sql: `select label, bound, round(100.0 * sum(duration_ns * launch_count) / sum(sum(duration_ns * launch_count)) over (partition by label), 1) as percent
from kernels
where is_requested
group by label, bound
order by label, percent desc`,
  },
  {
    name: 'Largest errors where measured',
    sql: `select name, family, launch_count, measured_ns, forward_ns, error_ppm / 1e4 as error_percent, reason
from kernels
where error_ppm is not null
order by abs(error_ppm) desc
limit 50`,
  },
]
