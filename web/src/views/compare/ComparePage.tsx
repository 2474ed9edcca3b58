import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { getRouteApi, Link } from '@tanstack/react-router'
import { useEffect, useMemo, useState } from 'react'
import { api } from '../../lib/api'
import { familyShown } from '../../lib/families'
import { counted, digits, time, timeUnit, timeWithUnit } from '../../lib/format'
import { classOf, isHypothetical, letter, shortName } from '../../lib/gpus'
import { ms } from '../../lib/units'
import { provenanceOf } from '../../lib/words'
import type { GpuSpec } from '../../schema/events'
import { GpuChip } from '../GpuChip'
import { InspectorFrame } from '../Inspector'
import { Problem } from '../Problem'
import { Provenance } from '../Provenance'
import { Empty, Loading } from '../States'
import { AddVersion } from './AddVersion'
import { CompareLanes } from './CompareLanes'
import { compare, onlyIn, type Comparison, type Comparisons } from './comparison'
import styles from './ComparePage.module.css'
import { DifferenceTable } from './DifferenceTable'
import { Waterfall } from './Waterfall'

const route = getRouteApi('/compare')

/** The verdict, then the few kernels that made it, then the launches themselves. */
export function ComparePage() {
  const { v = [], base } = route.useSearch()
  const navigate = route.useNavigate()
  const versions = v.slice(0, 8)
  const found = useQuery({
    queryKey: ['compare', versions, base],
    queryFn: () => compare(versions, base),
    enabled: versions.length >= 2,
    placeholderData: keepPreviousData,
  })
  const gpus = useQuery({ queryKey: ['gpus'], queryFn: api.gpus, staleTime: Infinity })
  const specs = useMemo(() => new Map(gpus.data?.map(({ spec }) => [spec.gpu, spec])), [gpus.data])
  useEffect(() => {
    document.title = 'Compare · Cascade'
    return () => {
      document.title = 'Cascade'
    }
  }, [])
  const change = (next: readonly string[]) => void navigate({ search: (before) => ({ ...before, v: next, base: next.includes(before.base ?? '') ? before.base : undefined }) })
  return (
    <InspectorFrame>
      <div className={styles.page}>
        <div className={styles.head}>
          <h1>Compare</h1>
          {found.data && (
            <ul className={styles.versions} aria-label="What is compared">
              {found.data.versions.map((version, place) => (
                <li key={version.v} className={styles.version}>
                  <Chip gpu={version.gpu} label={version.label} name={version.gpu_name} letter={letter(place)} specs={specs} />
                  <Link className={styles.run} to="/runs/$runId" params={{ runId: version.run_id }} title={version.trace_name ?? version.trace_id}>
                    {version.run_id.slice(0, 8)}
                  </Link>
                  {place === found.data.base ? (
                    <span className="chip">base</span>
                  ) : (
                    <button
                      type="button"
                      className={`button quiet ${styles.small}`}
                      onClick={() => void navigate({ search: (before) => ({ ...before, base: version.v }) })}
                    >
                      make base
                    </button>
                  )}
                  {versions.length > 2 && (
                    <button
                      type="button"
                      className={`button quiet ${styles.small}`}
                      aria-label={`Leave out ${letter(place)}`}
                      onClick={() => change(versions.filter((one) => one !== version.v))}
                    >
                      ×
                    </button>
                  )}
                </li>
              ))}
            </ul>
          )}
          {versions.length < 8 && <AddVersion chosen={versions} onAdd={(one) => change([...versions, one])} />}
        </div>
        {versions.length < 2 && (
          <Empty>
            {versions.length === 0 ? 'Choose two to eight configs' : 'One config is chosen: choose another'}, of one run or of several. A run’s
            Compare tab starts with all of its own.
          </Empty>
        )}
        {found.error && <Problem error={found.error} onRetry={() => void found.refetch()} />}
        {versions.length >= 2 && found.isPending && <Loading words="Comparing" rows={6} />}
        {found.data && versions.length >= 2 && <Compared found={found.data} />}
      </div>
    </InspectorFrame>
  )
}

function Chip({ gpu, label, name, letter: of, specs }: { readonly gpu: string; readonly label: string; readonly name: string; readonly letter: string; readonly specs: ReadonlyMap<string, GpuSpec> }) {
  const spec = specs.get(gpu)
  if (spec !== undefined) return <GpuChip gpu={spec} label={label} letter={of} hasLabel />
  return (
    <span>
      <b>{of}</b> {name}
    </span>
  )
}

function Compared({ found }: { readonly found: Comparisons }) {
  const { diff } = route.useSearch()
  const navigate = route.useNavigate()
  const [chosen, setChosen] = useState(0)
  const comparison = found.comparisons[Math.min(chosen, found.comparisons.length - 1)]
  const base = found.versions[found.base]
  return (
    <>
      <section className={`panel ${styles.verdicts}`} aria-labelledby="verdict">
        <div className={styles.sectionHead}>
          <h2 id="verdict">Verdict</h2>
          <Provenance kind={provenanceOf(base?.provenance)} />
          <span className={styles.quiet}>
            {found.metric.toUpperCase()} against {letter(found.base)}; kernels matched by {found.matched_by}
          </span>
        </div>
        {!found.is_comparable && (
          <p className={styles.warn} role="status">
            These are not the same question: {found.differs.map(({ field, values }) => `${field} (${values.map((value) => value ?? 'none').join(' / ')})`).join('; ')}.
          </p>
        )}
        <ul>
          {found.comparisons.map((one, at) => (
            <li key={one.v}>
              <button type="button" className={styles.verdict} aria-pressed={at === chosen} onClick={() => setChosen(at)}>
                <Verdict comparison={one} infeasible={found.versions[one.place]?.infeasible ?? null} />
              </button>
            </li>
          ))}
        </ul>
      </section>
      {comparison !== undefined && (
        <section className={`panel ${styles.section}`} aria-labelledby="why">
          <div className={styles.sectionHead}>
            <h2 id="why">
              From {letter(found.base)} to {letter(comparison.place)}
            </h2>
            <span className={styles.quiet}>{found.metric.toUpperCase()} by family; the bars add up to the difference</span>
          </div>
          <Waterfall comparison={comparison} base={letter(found.base)} other={letter(comparison.place)} />
        </section>
      )}
      <section className={`panel ${styles.section}`} aria-labelledby="kernels">
        <div className={styles.sectionHead}>
          <h2 id="kernels">Kernels</h2>
          <label className={styles.check}>
            <input
              type="checkbox"
              checked={diff === true}
              onChange={(event) => void navigate({ search: (before) => ({ ...before, diff: event.target.checked || undefined }), replace: true })}
            />
            only what differs beyond doubt
          </label>
        </div>
        <DifferenceTable found={found} isOnlyDifferent={diff === true} />
        <OnlyInOne found={found} />
      </section>
      <CompareLanes found={found} />
    </>
  )
}

function Verdict({ comparison, infeasible }: { readonly comparison: Comparison; readonly infeasible: string | null }) {
  const { place, ratio, start_ns: start, end_ns: end, sentence, verdict } = comparison
  const unit = timeUnit([start, end].flatMap((value) => (value === null ? [] : [ms(value / 1e6)])))
  return (
    <>
      <span className={styles.letter}>{letter(place)}</span>
      <strong className={verdict === 'faster' ? styles.faster : verdict === 'slower' ? styles.slower : ''}>
        {infeasible !== null ? 'INFEASIBLE' : ratio === null ? '–' : `${digits(ratio.value)}×`}
      </strong>
      <span className={styles.range}>{ratio === null ? '' : `${digits(ratio.p10)}–${digits(ratio.p90)}`}</span>
      <span className={styles.range}>
        {start === null || end === null ? '' : `${time(ms(start / 1e6), unit)} → ${time(ms(end / 1e6), unit)} ${unit}`}
      </span>
      <span className={styles.sentence}>{infeasible ?? sentence}</span>
    </>
  )
}

/** Kernels that not all versions run, by who runs them. */
function OnlyInOne({ found }: { readonly found: Comparisons }) {
  const lists = found.versions.map((_, place) => onlyIn(found.kernels, place))
  if (lists.every((list) => list.length === 0)) return <p className={styles.note}>Every kernel is in all of them.</p>
  return (
    <div className={styles.only}>
      {lists.map((list, place) =>
        list.length === 0 ? null : (
          <div key={found.versions[place]?.v}>
            <h3>
              In {letter(place)} but not in all: {counted(list.length, 'kernel')}
            </h3>
            <ul>
              {list.slice(0, 12).map((kernel) => (
                <li key={kernel.key}>
                  <code>{kernel.name ?? kernel.key}</code> {familyShown(kernel.family).word},{' '}
                  {timeWithUnit(ms((kernel.versions[place]?.total_ns ?? 0) / 1e6))}
                </li>
              ))}
            </ul>
          </div>
        ),
      )}
    </div>
  )
}

/** For the lanes: names and colours of the versions. */
export function tokenOf(spec: GpuSpec | undefined, label: string): string {
  return isHypothetical(label) ? 'hypothetical' : spec === undefined ? 'other' : classOf(spec)
}

export const nameOf = (spec: GpuSpec | undefined, name: string, label: string): string =>
  `${spec === undefined ? name : shortName(spec)}${isHypothetical(label) ? '*' : ''}`
