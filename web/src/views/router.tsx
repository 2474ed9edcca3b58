import { createRootRoute, createRoute, createRouter, lazyRouteComponent, retainSearchParams } from '@tanstack/react-router'
import { RunLayout } from './run/RunLayout'
import * as search from './search'
import { NotFound, Shell } from './Shell'

const root = createRootRoute({
  component: Shell,
  notFoundComponent: NotFound,
  validateSearch: search.rootSearch,
  search: { middlewares: [retainSearchParams(['theme', 'wall', 'perf'])] },
})

const home = createRoute({
  getParentRoute: () => root,
  path: '/',
  validateSearch: search.homeSearch,
  component: lazyRouteComponent(() => import('./home/HomePage'), 'HomePage'),
})

const newRun = createRoute({
  getParentRoute: () => root,
  path: '/new',
  validateSearch: search.newRunSearch,
  component: lazyRouteComponent(() => import('./newrun/NewRunPage'), 'NewRunPage'),
})

const traces = createRoute({
  getParentRoute: () => root,
  path: '/traces',
  validateSearch: search.listSearch,
  component: lazyRouteComponent(() => import('./traces/TracesPage'), 'TracesPage'),
})

const trace = createRoute({
  getParentRoute: () => root,
  path: '/traces/$traceId',
  validateSearch: search.traceSearch,
  component: lazyRouteComponent(() => import('./traces/TracePage'), 'TracePage'),
})

const runs = createRoute({
  getParentRoute: () => root,
  path: '/runs',
  validateSearch: search.listSearch,
  component: lazyRouteComponent(() => import('./runs/RunsPage'), 'RunsPage'),
})

const run = createRoute({
  getParentRoute: () => root,
  path: '/runs/$runId',
  validateSearch: search.runSearch,
  search: { middlewares: [retainSearchParams(['at', 'cfg'])] },
  component: RunLayout,
})

const live = createRoute({
  getParentRoute: () => run,
  path: '/',
  validateSearch: search.liveSearch,
  component: lazyRouteComponent(() => import('./live/LivePage'), 'LivePage'),
})

const timeline = createRoute({
  getParentRoute: () => run,
  path: '/timeline',
  validateSearch: search.timelineSearch,
  component: lazyRouteComponent(() => import('./timeline/TimelinePage'), 'TimelinePage'),
})

const kernels = createRoute({
  getParentRoute: () => run,
  path: '/kernels',
  validateSearch: search.kernelsSearch,
  component: lazyRouteComponent(() => import('./kernels/KernelsPage'), 'KernelsPage'),
})

const predictions = createRoute({
  getParentRoute: () => run,
  path: '/predictions',
  validateSearch: search.predictionsSearch,
  component: lazyRouteComponent(() => import('./predictions/PredictionsPage'), 'PredictionsPage'),
})

const whatIf = createRoute({
  getParentRoute: () => run,
  path: '/whatif',
  validateSearch: search.whatIfSearch,
  component: lazyRouteComponent(() => import('./whatif/WhatIfPage'), 'WhatIfPage'),
})

const runAccuracy = createRoute({
  getParentRoute: () => run,
  path: '/accuracy',
  validateSearch: search.accuracySearch,
  component: lazyRouteComponent(() => import('./accuracy/RunAccuracyPage'), 'RunAccuracyPage'),
})

const compare = createRoute({
  getParentRoute: () => root,
  path: '/compare',
  validateSearch: search.compareSearch,
  component: lazyRouteComponent(() => import('./compare/ComparePage'), 'ComparePage'),
})

const gpus = createRoute({
  getParentRoute: () => root,
  path: '/gpus',
  validateSearch: search.listSearch,
  component: lazyRouteComponent(() => import('./gpus/GpusPage'), 'GpusPage'),
})

const gpu = createRoute({
  getParentRoute: () => root,
  path: '/gpus/$name',
  component: lazyRouteComponent(() => import('./gpus/GpuPage'), 'GpuPage'),
})

const accuracy = createRoute({
  getParentRoute: () => root,
  path: '/accuracy',
  validateSearch: search.listSearch,
  component: lazyRouteComponent(() => import('./accuracy/AccuracyPage'), 'AccuracyPage'),
})

const sql = createRoute({
  getParentRoute: () => root,
  path: '/sql',
  validateSearch: search.sqlSearch,
  component: lazyRouteComponent(() => import('./sql/SqlPage'), 'SqlPage'),
})

const settings = createRoute({
  getParentRoute: () => root,
  path: '/settings',
  component: lazyRouteComponent(() => import('./settings/SettingsPage'), 'SettingsPage'),
})

export const router = createRouter({
  routeTree: root.addChildren([
    home,
    newRun,
    traces,
    trace,
    runs,
    run.addChildren([live, timeline, kernels, predictions, whatIf, runAccuracy]),
    compare,
    gpus,
    gpu,
    accuracy,
    sql,
    settings,
  ]),
  parseSearch: search.parseSearch,
  stringifySearch: search.stringifySearch,
  defaultPreload: 'intent',
})

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router
  }
}
