import { Page } from '../Page'
import { Loading } from '../States'

export function ComparePage() {
  return (
    <Page title="Compare">
      <Loading words="Compare" />
    </Page>
  )
}
