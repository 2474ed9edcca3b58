import { Page } from '../Page'
import { Loading } from '../States'

export function TimelinePage() {
  return (
    <Page title="Timeline">
      <Loading words="Timeline" />
    </Page>
  )
}
