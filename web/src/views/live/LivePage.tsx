import { useRun } from '../run/runContext'
import { RunFacts } from '../run/RunHeader'
import { Headline } from './Headline'
import styles from './LivePage.module.css'
import { LogPane } from './LogPane'
import { Results } from './Results'
import { Tiles } from './Tiles'

/** The answer so far, how sure it is, and what is left. */
export function LivePage() {
  const { run, isReplay } = useRun()
  return (
    <div className={styles.page}>
      <Headline run={run} isReplay={isReplay} />
      <Tiles run={run} />
      <Results run={run} />
      <LogPane run={run} />
      <RunFacts run={run} />
    </div>
  )
}
