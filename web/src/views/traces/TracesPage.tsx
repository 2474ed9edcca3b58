import { Page } from '../Page'
import { Loading } from '../States'

export function TracesPage() {
  return (
    <Page title="Traces">
      <Loading words="Traces" />
    </Page>
  )
}
