import { Page } from '../Page'
import { Loading } from '../States'

export function SettingsPage() {
  return (
    <Page title="Settings">
      <Loading words="Settings" />
    </Page>
  )
}
