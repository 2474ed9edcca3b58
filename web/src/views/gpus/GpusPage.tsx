import { Page } from '../Page'
import { Loading } from '../States'

export function GpusPage() {
  return (
    <Page title="GPUs">
      <Loading words="GPUs" />
    </Page>
  )
}
