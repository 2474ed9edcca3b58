import { Page } from '../Page'
import { Loading } from '../States'

export function WhatIfPage() {
  return (
    <Page title="What-if">
      <Loading words="What-if" />
    </Page>
  )
}
