import { useQuery } from '@tanstack/react-query'
import { getRouteApi, Link, Outlet, useNavigate } from '@tanstack/react-router'
import { Cpu, Database, House, Layers, ListVideo, Search, Settings, SunMoon, Target } from 'lucide-react'
import { lazy, Suspense, useEffect, useMemo, useState, useSyncExternalStore } from 'react'
import { api, Refusal } from '../lib/api'
import { keys, type Binding } from '../lib/keys'
import { isDark, onPreferences, prefer, preferences, show } from '../lib/preferences'
import { KeysOverlay } from './KeysOverlay'
import styles from './Shell.module.css'
import { Strip } from './States'
import { useKeys } from './useKeys'

const HEALTH_POLL_MS = 15_000
const Palette = lazy(async () => ({ default: (await import('./palette/Palette')).Palette }))
const route = getRouteApi('__root__')

const PAGES = [
  { to: '/', name: 'Home', keys: 'g h', Icon: House },
  { to: '/traces', name: 'Traces', keys: 'g i', Icon: Layers },
  { to: '/runs', name: 'Runs', keys: 'g u', Icon: ListVideo },
  { to: '/gpus', name: 'GPUs', keys: 'g d', Icon: Cpu },
  { to: '/accuracy', name: 'Accuracy', keys: 'g m', Icon: Target },
  { to: '/sql', name: 'SQL', keys: 'g s', Icon: Database },
  { to: '/settings', name: 'Settings', keys: 'g o', Icon: Settings },
] as const

/** The frame of every page; where the token is missing it asks for it in place, and nothing else is asked before. */
export function Shell() {
  const about = useQuery({ queryKey: ['about'], queryFn: api.about, staleTime: Infinity })
  const isDenied = about.error instanceof Refusal && about.error.status === 401
  const { theme, wall } = route.useSearch()
  const stored = useSyncExternalStore(onPreferences, preferences)
  const [opened, setOpened] = useState<'none' | 'palette' | 'keys'>('none')
  useEffect(() => show(theme ?? stored.theme), [theme, stored])
  useEffect(() => {
    document.documentElement.toggleAttribute('data-wall', wall === true)
  }, [wall])
  useEffect(listenToKeys, [])
  useShellKeys(setOpened)
  const close = () => setOpened('none')
  return (
    <div className={`${styles.shell} ${wall ? styles.wall : ''}`}>
      <a className={styles.skip} href="#main">
        Skip to content
      </a>
      <header className={styles.bar}>
        <Link to="/" className={styles.brand}>
          <Mark />
          Cascade
        </Link>
        <button type="button" className={styles.search} onClick={() => setOpened('palette')} disabled={isDenied}>
          <Search size={14} aria-hidden="true" />
          <span>Search kernels, runs, GPUs, commands</span>
          <kbd>Ctrl K</kbd>
        </button>
        <div className={styles.right}>
          <span className={styles.version}>{about.data && `v${about.data.version}`}</span>
          <button type="button" className={`button quiet ${styles.icon}`} aria-label="Keys" title="Keys (?)" onClick={() => setOpened('keys')}>
            ?
          </button>
          <button
            type="button"
            className={`button quiet ${styles.icon}`}
            aria-label="Switch between dark and light"
            title="Dark or light"
            onClick={() => prefer({ theme: isDark() ? 'light' : 'dark' })}
          >
            <SunMoon size={16} aria-hidden="true" />
          </button>
        </div>
      </header>
      <nav aria-label="Pages" className={styles.rail}>
        {PAGES.map(({ to, name, Icon }) => (
          <Link key={to} to={to} title={name} activeOptions={{ exact: to === '/', includeSearch: false }} activeProps={{ 'aria-current': 'page' }}>
            <Icon size={18} aria-hidden="true" />
            <span>{name}</span>
          </Link>
        ))}
      </nav>
      <Stopped />
      <main id="main" tabIndex={-1} className={styles.main}>
        {isDenied ? <Denied /> : !about.isPending && <Outlet />}
      </main>
      {opened === 'keys' && <KeysOverlay onClose={close} />}
      {opened === 'palette' && (
        <Suspense fallback={null}>
          <Palette onClose={close} />
        </Suspense>
      )}
    </div>
  )
}

/** What would otherwise look like a run that takes long. */
function Stopped() {
  const health = useQuery({ queryKey: ['health'], queryFn: api.health, refetchInterval: HEALTH_POLL_MS, retry: false })
  const { error } = health
  if (!(error instanceof Refusal && error.status === 503)) return null
  return (
    <div className={styles.stopped}>
      <Strip>{error.message.charAt(0).toUpperCase() + error.message.slice(1)}.</Strip>
    </div>
  )
}

function listenToKeys(): () => void {
  const press = (event: KeyboardEvent) => {
    const target = event.target instanceof HTMLElement ? event.target : null
    if (event.defaultPrevented || document.querySelector('dialog[open]') !== null) return
    const isTyping = target?.matches('input:not([type=checkbox], [type=radio], [type=range], [type=button]), textarea, select, [contenteditable] *, [contenteditable]') ?? false
    // A focused button is pressed by Space and Enter, and a slider moves by arrows: those are theirs.
    if (target?.matches('button, a, summary, input') && ['Space', ' ', 'Enter'].includes(event.key)) return
    if (target?.matches('input[type=range], [role=slider], [role=table], [role=grid], [role=listbox]') && /^(Arrow|Home|End|Page)/.test(event.key)) return
    keys.press(event, { isTyping, singleKeys: preferences().singleKeys })
  }
  window.addEventListener('keydown', press)
  return () => window.removeEventListener('keydown', press)
}

function useShellKeys(open: (what: 'palette' | 'keys') => void): void {
  const navigate = useNavigate()
  useKeys(
    useMemo<readonly Binding[]>(
      () => [
        { keys: 'ctrl+k', words: 'Search and commands', group: 'Everywhere', run: () => open('palette') },
        { keys: '?', words: 'All keys', group: 'Everywhere', run: () => open('keys') },
        ...PAGES.map(({ to, name, keys: chord }) => ({
          keys: chord,
          words: name,
          group: 'Pages',
          run: () => void navigate({ to }),
        })),
      ],
      [navigate, open],
    ),
  )
}

function Denied() {
  const [token, setToken] = useState('')
  return (
    <form
      className={styles.denied}
      onSubmit={(event) => {
        event.preventDefault()
        // The server exchanges it for a cookie and takes it out of the address.
        window.location.assign(`${window.location.pathname}?token=${encodeURIComponent(token.trim())}`)
      }}
    >
      <h1>This server asks for its token</h1>
      <p>
        Open the address that <code>cascade serve</code> printed last, or paste the token here.
      </p>
      <label htmlFor="token">Token</label>
      <div className={styles.row}>
        <input
          id="token"
          className="field mono"
          autoComplete="off"
          spellCheck={false}
          value={token}
          onChange={(event) => setToken(event.target.value)}
        />
        <button className="button primary" disabled={token.trim() === ''}>
          Open
        </button>
      </div>
    </form>
  )
}

export function NotFound() {
  return (
    <section className={styles.denied}>
      <h1>There is no such page</h1>
      <p>
        <Link to="/">Home</Link> lists every trace and run.
      </p>
    </section>
  )
}

function Mark() {
  return (
    <svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true" fill="none" stroke="currentColor" strokeWidth="2.5" strokeLinecap="round">
      <path d="M4 6h16" />
      <path d="M8 12h12" opacity=".75" />
      <path d="M13 18h7" opacity=".5" />
    </svg>
  )
}
