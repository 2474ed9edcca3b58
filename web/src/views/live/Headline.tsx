import { range, time, timeUnit } from '../../lib/format'
import { letter, shortName } from '../../lib/gpus'
import { unreachable } from '../../lib/unreachable'
import type { Estimate } from '../../lib/units'
import { headlineMetric, infeasible, isOver, isPredicted, metricOf, requestedConfigs, type Config, type Metric, type Run } from '../../store/run'
import styles from './Headline.module.css'

const NAMES: Readonly<Record<Metric, string>> = {
  kernel: 'kernel time',
  prefill: 'prefill step',
  decode: 'decode step',
  ttft: 'TTFT',
  tpot: 'TPOT',
}

/** The answer so far in one sentence, and what keeps it from being certain. */
export function Headline({ run, isReplay }: { readonly run: Run; readonly isReplay: boolean }) {
  // A moment of the past is read by whoever scrubs; announcing each would only be noise.
  return (
    <p className={styles.headline} aria-live={isReplay ? 'off' : 'polite'}>
      {sentence(run)}
    </p>
  )
}

function sentence(run: Run): string {
  switch (run.status) {
    case 'unknown':
      return run.trace.status === 'unknown' ? 'Reading the run…' : 'The trace is here; the run was not asked for yet.'
    case 'cancelled':
      return 'This run was cancelled; what was simulated before is shown.'
    case 'failed':
      return 'This run failed; the reason is above.'
    case 'running':
    case 'completed':
    case 'completed_with_failures':
      return best(run)
    default:
      return unreachable(run.status)
  }
}

function best(run: Run): string {
  const metric = headlineMetric(run)
  const configs = requestedConfigs(run)
  const ranked = configs
    .map((config, index) => ({ config, index, estimate: metricOf(config, metric) }))
    .filter((one): one is { config: Config; index: number; estimate: Estimate } => one.estimate !== null)
    .sort((a, b) => a.estimate.value - b.estimate.value)
  const first = ranked[0]
  const waiting = configs.filter((config) => !isPredicted(config)).length
  const left = waiting > 0 && !isOver(run) ? ` ${waiting} of ${configs.length} GPUs are still being simulated.` : ''
  if (first === undefined) {
    if (configs.length > 0 && configs.every((config) => infeasible(config) !== '')) return 'INFEASIBLE on every GPU asked for.'
    return isOver(run) ? 'No GPU has an answer.' : `Simulating on ${configs.length} GPUs…`
  }
  const unit = timeUnit([first.estimate.value])
  const name = `${letter(first.index)} ${shortName(first.config.spec.gpu)}`
  const rivals = ranked.slice(1).filter((one) => one.estimate.p10 <= first.estimate.p90)
  const doubt =
    rivals.length === 0
      ? ''
      : rivals.length === 1
        ? ' The interval of one more reaches into it, so the order is not certain.'
        : ` The intervals of ${rivals.length} more reach into it, so the order is not certain.`
  return `Shortest ${NAMES[metric]}: ${name}, ${time(first.estimate.value, unit)} ${unit} (${range(first.estimate.p10, first.estimate.p90, unit)}).${doubt}${left}`
}
