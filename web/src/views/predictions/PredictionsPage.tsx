import { Page } from '../Page'
import { Loading } from '../States'

export function PredictionsPage() {
  return (
    <Page title="Predictions">
      <Loading words="Predictions" />
    </Page>
  )
}
