import { getRouteApi } from '@tanstack/react-router'
import { useMemo } from 'react'
import { boundShown, familyShown } from '../../lib/families'
import { count, digits, MISSING, time, timeUnit } from '../../lib/format'
import { letter } from '../../lib/gpus'
import { ms } from '../../lib/units'
import { DataTable, type Column } from '../DataTable'
import { Empty } from '../States'
import { isDifferent, type ComparedKernel, type Comparisons } from './comparison'
import { shortKernel } from '../kernels/kernelRows'
import styles from './DifferenceTable.module.css'

const route = getRouteApi('/compare')

/** Kernel by kernel: times, what changed, and how sure that is. */
export function DifferenceTable({ found, isOnlyDifferent }: { readonly found: Comparisons; readonly isOnlyDifferent: boolean }) {
  const { sort, desc } = route.useSearch()
  const navigate = route.useNavigate()
  const rows = useMemo(
    () => (isOnlyDifferent ? found.kernels.filter((kernel) => isDifferent(kernel, found.base)) : found.kernels),
    [found, isOnlyDifferent],
  )
  const columns = useMemo(() => columnsOf(found), [found])
  return (
    <DataTable
      label="Kernels compared"
      rows={rows}
      columns={columns}
      keyOf={({ key }) => key}
      maxHeight={420}
      sort={sort === undefined ? undefined : { by: sort, isDescending: desc === true }}
      onSort={({ by, isDescending }) => void navigate({ search: (before) => ({ ...before, sort: by, desc: isDescending || undefined }), replace: true })}
      empty={<Empty>No kernel differs by more than the doubt about it.</Empty>}
    />
  )
}

function columnsOf(found: Comparisons): readonly Column<ComparedKernel>[] {
  const { base, versions, kernels } = found
  const unit = timeUnit(kernels.flatMap(({ versions: cells }) => cells.flatMap((cell) => (cell?.total_ns == null ? [] : [ms(cell.total_ns / 1e6)]))))
  const total = (kernel: ComparedKernel, place: number) => kernel.versions[place]?.total_ns ?? null
  const shown = (value: number | null) => (value === null ? MISSING : time(ms(value / 1e6), unit))
  return [
    {
      id: 'name',
      title: 'Kernel',
      width: 280,
      grows: true,
      isSticky: true,
      sortBy: ({ name }) => name,
      cell: ({ name, key, op, shape }) => (
        <span title={`${name ?? key}${op ? `, ${op}` : ''} ${shape}`}>
          <span className="mono">{shortKernel(name ?? key)}</span>
          {shape !== '' && <span className={styles.shape}>{shape}</span>}
        </span>
      ),
    },
    {
      id: 'family',
      title: 'Family',
      width: 132,
      sortBy: ({ family }) => familyShown(family).word,
      cell: ({ family }) => (
        <span className={styles.family}>
          <span style={{ background: `var(--${familyShown(family).token})` }} aria-hidden="true" />
          {familyShown(family).word}
        </span>
      ),
    },
    { id: 'n', title: 'n', width: 64, isNumber: true, sortBy: ({ versions: cells }) => cells[base]?.count ?? null, cell: ({ versions: cells }) => (cells[base] == null ? MISSING : count(cells[base].count)) },
    { id: 'base', title: letter(base), unit, width: 84, isNumber: true, sortBy: (kernel) => total(kernel, base), cell: (kernel) => shown(total(kernel, base)) },
    ...versions.flatMap((_, place): readonly Column<ComparedKernel>[] => {
      if (place === base) return []
      const name = letter(place)
      return [
        { id: `t${place}`, title: name, unit, width: 84, isNumber: true, sortBy: (kernel) => total(kernel, place), cell: (kernel) => shown(total(kernel, place)) },
        {
          id: `d${place}`,
          title: `Δ ${name}`,
          unit,
          width: 96,
          isNumber: true,
          sortBy: ({ versions: cells }) => cells[place]?.delta_ns ?? null,
          cell: ({ versions: cells }) => <Delta value={cells[place]?.delta_ns ?? null} text={shown(Math.abs(cells[place]?.delta_ns ?? 0))} />,
        },
        {
          id: `r${place}`,
          title: `${name}/${letter(base)}`,
          width: 172,
          isNumber: true,
          hint: 'ratio, and between which it is in 8 of 10 cases; errors that both share cancel out',
          sortBy: ({ versions: cells }) => cells[place]?.ratio?.value ?? null,
          cell: ({ versions: cells }) => {
            const ratio = cells[place]?.ratio
            return ratio == null ? MISSING : (
              <>
                {digits(ratio.value)}×<span className={styles.range}>{digits(ratio.p10)}–{digits(ratio.p90)}</span>
              </>
            )
          },
        },
        {
          id: `b${place}`,
          title: `bound ${name}`,
          width: 132,
          cell: ({ versions: cells }) => why(cells[base]?.bound, cells[place]?.bound),
        },
      ]
    }),
  ]
}

/** What it waits for, and what it waited for before where that changed. */
function why(before: string | undefined, now: string | undefined): string {
  if (now === undefined) return ''
  return before === undefined || before === now ? boundShown(now).word : `${boundShown(before).word} → ${boundShown(now).word}`
}

function Delta({ value, text }: { readonly value: number | null; readonly text: string }) {
  if (value === null) return MISSING
  if (value === 0) return '0'
  return (
    <span className={value < 0 ? styles.faster : styles.slower}>
      {value < 0 ? '−' : '+'}
      {text}
    </span>
  )
}
