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
  const { run, isReplay } = view
  const going = useGoing(view)
  return (
    <div className={styles.page}>
      <Headline run={run} isReplay={isReplay} />
      {going.silentS !== null && <Strip>Nothing was said for {Math.round(going.silentS)} s. The log below has the last words of each simulator.</Strip>}
      <Tiles run={run} going={going} />
      <Results run={run} />
      <LogPane run={run} />
      <RunFacts run={run} />
    </div>
  )
}
