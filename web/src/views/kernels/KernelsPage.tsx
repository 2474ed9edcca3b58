import { Page } from '../Page'
import { Loading } from '../States'

export function KernelsPage() {
  return (
    <Page title="Kernels">
      <Loading words="Kernels" />
    </Page>
  )
}
