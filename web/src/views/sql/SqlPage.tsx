import { Page } from '../Page'
import { Loading } from '../States'

export function SqlPage() {
  return (
    <Page title="SQL">
      <Loading words="SQL" />
    </Page>
  )
}
