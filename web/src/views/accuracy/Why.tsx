import { useQuery } from '@tanstack/react-query'
import { digits, MISSING, range, rate, signedPercent, timeUnit, timeWithUnit, time } from '../../lib/format'
import { boundShown, familyShown } from '../../lib/families'
import { screens, type Receipt, type ReceiptInput, type ReceiptLine } from '../../lib/screens'
import { ms, ratio } from '../../lib/units'
import { Problem } from '../Problem'
import { Loading } from '../States'
import { Simulators } from './Simulators'
import styles from './Why.module.css'

interface Props {
  readonly runId: string
  readonly configId: string
  readonly taskId: string
  /** The run's answer has changed since: its kernels were refined. */
  readonly isRefined?: boolean
}

/** Why this number: a receipt read from top to bottom, whose lines multiply and add to what is shown. */
export function Why({ runId, configId, taskId, isRefined = false }: Props) {
  const found = useQuery({
    queryKey: ['explain', runId, configId, taskId, isRefined],
    queryFn: () => screens.explain(runId, configId, taskId),
    staleTime: 30_000,
  })
  if (found.error) return <Problem error={found.error} onRetry={() => void found.refetch()} />
  if (found.data === undefined) return <Loading words="Asking why" rows={9} height={420} />
  return (
    <>
      <ReceiptView receipt={found.data} />
      <div className={`${styles.receipt} ${styles.beside}`}>
        <Simulators runId={runId} configId={configId} taskId={taskId} version={String(isRefined)} />
      </div>
    </>
  )
}

function ReceiptView({ receipt }: { readonly receipt: Receipt }) {
  const of = (...kinds: readonly ReceiptLine['kind'][]) => receipt.lines.filter(({ kind }) => kinds.includes(kind))
  return (
    <div className={styles.receipt} data-testid="receipt">
      <p className={styles.of}>
        <strong>{familyShown(receipt.family).word}</strong> on {receipt.gpu_name}
      </p>
      <code className={styles.name}>{receipt.name}</code>
      <p className={styles.value}>
        {receipt.value_ns === null ? MISSING : shown(receipt.value_ns)}
        {receipt.p10_ns !== null && receipt.p90_ns !== null && (
          <span>{range(ms(receipt.p10_ns / 1e6), ms(receipt.p90_ns / 1e6), timeUnit([ms(receipt.p10_ns / 1e6)]))}</span>
        )}
      </p>
      {receipt.tier !== 'A' && receipt.value_ns !== null && (
        <p className={styles.note}>
          Simulated instruction by instruction by {receipt.simulator} version {receipt.simulator_version ?? '?'}: the limits are what it counted, each
          at the datasheet’s rate; the rest of its time is waiting.
        </p>
      )}
      {receipt.tier === 'A' && !receipt.is_reproduced && receipt.value_ns !== null && (
        <p className={styles.note}>
          This run was answered by {receipt.simulator} version {receipt.simulator_version ?? '?'}, with other constants than this server
          has: its numbers stand as stored, and are not taken apart anew.
        </p>
      )}
      <Group title="Inputs" lines={of('input', 'work')} />
      <Group title="Limits, each alone" lines={of('limit')} />
      <section>
        <h3>Sum</h3>
        <ol className={styles.sum}>
          {of('add', 'multiply', 'subtotal', 'result').map((line) => (
            <SumLine key={line.label} line={line} isFirst={line === of('add')[0]} />
          ))}
        </ol>
      </section>
      <Group title="Interval" lines={of('interval')} />
      <section>
        <h3>Beside it</h3>
        <dl className={styles.facts}>
          <Fact name="measured here" value={receipt.measured_ns !== null && receipt.error_ppm !== null ? shown(receipt.measured_ns) : null} why="not measured on this GPU" />
          <Fact name="forward error" value={receipt.error_ppm === null ? null : signedPercent(ratio(receipt.error_ppm / 1e6))} why="nothing to compare with here" />
          <Fact name="datasheet roofline" value={receipt.roofline_ns === null ? null : shown(receipt.roofline_ns)} why="not computed" />
          <Fact name="tier" value={receipt.tier} why="" />
          <Fact name="reason" value={receipt.reason} why="" />
          <Fact name="simulator" value={`${receipt.simulator} ${receipt.simulator_version ?? ''}`} why="" />
          <Fact name="calibration" value={receipt.calibration_digest} why="no constants" />
          <Fact name="config" value={receipt.config_id} why="" />
        </dl>
      </section>
    </div>
  )
}

const shown = (value: number) => timeWithUnit(ms(value / 1e6))

function Group({ title, lines }: { readonly title: string; readonly lines: readonly ReceiptLine[] }) {
  if (lines.length === 0) return null
  return (
    <section>
      <h3>{title}</h3>
      <ul className={styles.lines}>
        {lines.map((line) => (
          <li key={line.label} className={line.is_largest ? styles.largest : undefined}>
            <span className={styles.label}>{line.kind === 'limit' ? boundShown(line.label).word : line.label}</span>
            <span className={styles.amount}>{line.value_ns === null ? '' : shown(line.value_ns)}</span>
            <span className={styles.more}>
              {line.formula !== '' && <span>{line.formula}</span>}
              {line.inputs.map((input) => (
                <Input key={input.name} input={input} />
              ))}
              <span className={styles.source}>{line.source}</span>
            </span>
          </li>
        ))}
      </ul>
    </section>
  )
}

function Input({ input }: { readonly input: ReceiptInput }) {
  return (
    <span className={styles.input}>
      {input.name.replace(/_per_s$/, '').replaceAll('_', ' ')} <b>{amount(input)}</b>
      {input.source !== '' && <i>{input.source}</i>}
    </span>
  )
}

function amount({ value, unit }: ReceiptInput): string {
  if (typeof value === 'string') return value
  if (unit === 'FLOP/s' || unit === 'B/s') return rate(value, unit.slice(0, -2))
  if (unit === 'FLOP' || unit === 'B') return rate(value, unit).slice(0, -2)
  return `${digits(value)} ${unit}`.trim()
}

function SumLine({ line, isFirst }: { readonly line: ReceiptLine; readonly isFirst: boolean }) {
  const sign = line.kind === 'multiply' ? '×' : line.kind === 'add' ? (isFirst ? '' : '+') : '='
  const value = line.factor !== null ? digits(line.factor) : line.value_ns === null ? MISSING : precise(line.value_ns)
  return (
    <li className={line.kind === 'result' || line.kind === 'subtotal' ? styles.total : undefined}>
      <span className={styles.sign}>{sign}</span>
      <span className={styles.label}>{line.label}</span>
      <span className={styles.amount}>{value}</span>
      <span className={styles.more}>
        {line.formula !== '' && <span>{line.formula}</span>}
        {line.inputs.map((input) => (
          <Input key={input.name} input={input} />
        ))}
        <span className={styles.source}>{line.source}</span>
      </span>
    </li>
  )
}

/** Four places in one unit, so that a reader can add them up. */
const precise = (value: number) => `${time(ms(value / 1e6), 'µs')} µs`

function Fact({ name, value, why }: { readonly name: string; readonly value: string | null; readonly why: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd title={value === null ? why : undefined}>{value ?? `${MISSING} ${why}`}</dd>
    </>
  )
}
