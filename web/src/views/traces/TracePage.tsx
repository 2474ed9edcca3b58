import { Page } from '../Page'
import { Loading } from '../States'

export function TracePage() {
  return (
    <Page title="Trace">
      <Loading words="Trace" />
    </Page>
  )
}
