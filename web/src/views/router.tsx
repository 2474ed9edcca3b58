import { createRootRoute, createRoute, createRouter } from '@tanstack/react-router'
import { Home } from './Home'
import { NewRun } from './NewRun'
import { NotFound, Shell } from './Shell'
import { RunPage } from './RunPage'

const root = createRootRoute({ component: Shell, notFoundComponent: NotFound })

const home = createRoute({ getParentRoute: () => root, path: '/', component: Home })

export interface NewRunSearch {
  readonly trace?: string
  readonly gpu?: readonly string[]
}

const newRun = createRoute({
  getParentRoute: () => root,
  path: '/new',
  component: NewRun,
  validateSearch: (search: Record<string, unknown>): NewRunSearch => ({
    ...(typeof search.trace === 'string' ? { trace: search.trace } : {}),
    ...(search.gpu === undefined ? {} : { gpu: [search.gpu].flat().map(String) }),
  }),
})

export interface RunSearch {
  /** Position in the run's log: everything as known at that moment. Absent: now. */
  readonly at?: number
  /** Config whose log is shown. Absent: all. */
  readonly log?: string
}

const run = createRoute({
  getParentRoute: () => root,
  path: '/runs/$runId',
  component: RunPage,
  validateSearch: (search: Record<string, unknown>): RunSearch => {
    const at = Number(search.at)
    return {
      ...(search.at !== undefined && Number.isInteger(at) && at >= 0 ? { at } : {}),
      ...(typeof search.log === 'string' && search.log !== '' ? { log: search.log } : {}),
    }
  },
})

export const router = createRouter({ routeTree: root.addChildren([home, newRun, run]), defaultPreload: false })

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router
  }
}
