import { useQuery } from '@tanstack/react-query'
import { count, digits, MISSING, percent, range, timeUnit, timeWithUnit } from '../../lib/format'
import { boundShown } from '../../lib/families'
import { screens, type SimulatedBy } from '../../lib/screens'
import { ms, ratio } from '../../lib/units'
import styles from './Simulators.module.css'

interface Props {
  readonly runId: string
  readonly configId: string
  readonly taskId: string
  /** Changes when there may be more to show. */
  readonly version: string
}

/** One kernel by every simulator that was asked, side by side; nothing where only one was. */
export function Simulators({ runId, configId, taskId, version }: Props) {
  const { data } = useQuery({
    queryKey: ['simulations', runId, configId, taskId, version],
    queryFn: () => screens.simulations(runId, configId, taskId),
    placeholderData: (before) => before,
  })
  if (data === undefined || data.simulations.length < 2) return null
  const said = data.simulations
  return (
    <section data-testid="simulators">
      <h3>Simulators</h3>
      {data.why !== '' && <p className={styles.why}>{sentence(data.why)}</p>}
      <div className={styles.scroll}>
        <table className={styles.table}>
          <thead>
            <tr>
              <td />
              {said.map((one) => (
                <th key={one.simulator} scope="col" className={one.stands ? styles.stands : undefined}>
                  {one.simulator}
                  {one.stands && <span> stands</span>}
                  {one.run_id !== runId && <span> in run {one.run_id.slice(0, 8)}</span>}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {ROWS.map(({ name, cell }) => {
              const cells = said.map(cell)
              if (cells.every((text) => text === MISSING)) return null
              return (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  {cells.map((text, index) => (
                    <td key={said[index]?.simulator} className={said[index]?.stands ? styles.stands : undefined}>
                      {text}
                    </td>
                  ))}
                </tr>
              )
            })}
          </tbody>
        </table>
      </div>
      <p className={styles.beside}>
        {data.measured_ns === null ? 'Not measured where the trace was recorded.' : `Measured where the trace was recorded: ${shown(data.measured_ns)}.`} Forward
        predictions, before the source correction.
      </p>
    </section>
  )
}

const sentence = (why: string): string => `${why.charAt(0).toUpperCase()}${why.slice(1)}.`

const shown = (value: number | null): string => (value === null ? MISSING : value === 0 ? '0' : timeWithUnit(ms(value / 1e6)))

const counted = (one: SimulatedBy, name: string): number | null => {
  const value = one.statistics?.[name]
  return typeof value === 'number' ? value : null
}

const share = (part: number | null, whole: number | null): string => (part === null || whole === null || whole === 0 ? MISSING : percent(ratio(part / whole)))

function waits(one: SimulatedBy): string {
  const stalls = one.statistics?.stall_cycles
  if (typeof stalls !== 'object') return MISSING
  const whole = Object.values(stalls).reduce((sum, value) => sum + value, 0)
  const largest = Object.entries(stalls).sort(([, a], [, b]) => b - a)[0]
  return largest === undefined || whole === 0 ? MISSING : `${largest[0]} ${percent(ratio(largest[1] / whole))}`
}

const ROWS: readonly { readonly name: string; readonly cell: (one: SimulatedBy) => string }[] = [
  { name: 'time', cell: (one) => (one.duration_ns === null ? 'failed' : shown(one.duration_ns)) },
  {
    name: 'p10–p90',
    cell: (one) => (one.p10_ns === null || one.p90_ns === null ? MISSING : range(ms(one.p10_ns / 1e6), ms(one.p90_ns / 1e6), timeUnit([ms(one.p10_ns / 1e6)]))),
  },
  { name: 'bound by', cell: (one) => (one.duration_ns === null ? MISSING : boundShown(one.bound).word) },
  { name: 'arithmetic alone', cell: (one) => shown(one.tensor_ns) },
  { name: 'DRAM alone', cell: (one) => shown(one.dram_ns) },
  { name: 'L2 alone', cell: (one) => shown(one.l2_ns) },
  { name: 'issue alone', cell: (one) => shown(one.issue_ns) },
  { name: 'cycles', cell: (one) => (one.sm_cycles === null ? MISSING : count(one.sm_cycles)) },
  { name: 'warp instructions', cell: (one) => number(counted(one, 'warp_instructions')) },
  { name: 'IPC', cell: (one) => (counted(one, 'ipc') === null ? MISSING : digits(counted(one, 'ipc') ?? 0)) },
  { name: 'CTAs per SM', cell: (one) => number(counted(one, 'ctas_per_sm')) },
  { name: 'L1 read hits', cell: (one) => share(counted(one, 'l1_read_hits'), counted(one, 'l1_read_sectors')) },
  { name: 'L2 read hits', cell: (one) => share(counted(one, 'l2_read_hits'), counted(one, 'l2_read_sectors')) },
  {
    name: 'DRAM bytes',
    cell: (one) => (counted(one, 'dram_read_bytes') === null ? MISSING : count((counted(one, 'dram_read_bytes') ?? 0) + (counted(one, 'dram_write_bytes') ?? 0))),
  },
  { name: 'waits longest for', cell: waits },
  { name: 'tier', cell: (one) => one.tier },
  { name: 'reason', cell: (one) => one.reason.replaceAll(';', '; ').replaceAll('_', ' ') },
]

function number(value: number | null): string {
  return value === null ? MISSING : count(value)
}
