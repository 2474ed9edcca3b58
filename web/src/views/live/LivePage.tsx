import { useMemo } from 'react'
import { isOver, requestedConfigs } from '../../store/run'
import { useRun } from '../run/runContext'
import { RunFacts } from '../run/RunHeader'
import { Strip } from '../States'
import { Headline } from './Headline'
import styles from './LivePage.module.css'
import { LogPane } from './LogPane'
import { Results } from './Results'
import { Tiles } from './Tiles'
import { useGoing } from './useGoing'

/** The answer so far, how sure it is, and what is left. */
export function LivePage() {
  const view = useRun()
  const { run, head, isReplay } = view
  const specs = requestedConfigs(head).map(({ spec }) => spec)
  // The same array until another run is looked at: the log's pane has nothing to do with results.
  const ids = specs.map(({ config_id: id }) => id).join()
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const configs = useMemo(() => specs, [ids])
  const going = useGoing(view)
  return (
    <div className={styles.page}>
      <Headline run={run} isReplay={isReplay} />
      {going.silentS !== null && <Strip>Nothing was said for {Math.round(going.silentS)} s. The log below has the last words of each simulator.</Strip>}
      <Tiles run={run} going={going} />
      <Results run={run} />
      <LogPane runId={run.runId} configs={configs} isGrowing={!isOver(head)} at={isReplay ? view.at : null} />
      <RunFacts run={run} />
    </div>
  )
}
