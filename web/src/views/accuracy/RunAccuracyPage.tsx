import { Page } from '../Page'
import { Loading } from '../States'

export function RunAccuracyPage() {
  return (
    <Page title="Accuracy">
      <Loading words="Accuracy" />
    </Page>
  )
}
