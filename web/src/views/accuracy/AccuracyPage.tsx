import { Page } from '../Page'
import { Loading } from '../States'

export function AccuracyPage() {
  return (
    <Page title="Accuracy">
      <Loading words="Accuracy" />
    </Page>
  )
}
