import { Page } from '../Page'
import { Loading } from '../States'

export function GpuPage() {
  return (
    <Page title="GPU">
      <Loading words="GPU" />
    </Page>
  )
}
