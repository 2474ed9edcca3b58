/** What this browser's user prefers, kept in it: nothing of it is the server's business. */
export interface Preferences {
  readonly theme: 'system' | 'dark' | 'light'
  /** Single letters act as commands; off for those whose input device types them by chance. */
  readonly singleKeys: boolean
  readonly motion: 'system' | 'reduced'
}

const KEY = 'cascade.preferences'
const DEFAULTS: Preferences = { theme: 'system', singleKeys: true, motion: 'system' }
const listeners = new Set<() => void>()
let current: Preferences | null = null

export function preferences(): Preferences {
  current ??= stored()
  return current
}

export function prefer(changes: Partial<Preferences>): void {
  current = { ...preferences(), ...changes }
  try {
    localStorage.setItem(KEY, JSON.stringify(current))
  } catch {
    // A browser without storage forgets them with the tab; they hold until then.
  }
  show(current.theme)
  for (const listener of listeners) listener()
}

export function onPreferences(listener: () => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** Put theme and motion on the page. A theme of the address outranks the stored one, for links and screenshots. */
export function show(theme: Preferences['theme']): void {
  const root = document.documentElement
  if (theme === 'system') delete root.dataset.theme
  else root.dataset.theme = theme
  if (preferences().motion === 'reduced') root.dataset.motion = 'reduced'
  else delete root.dataset.motion
}

/** Which of both themes is shown now. */
export const isDark = (): boolean =>
  document.documentElement.dataset.theme === undefined
    ? matchMedia('(prefers-color-scheme: dark)').matches
    : document.documentElement.dataset.theme === 'dark'

export const isMotionReduced = (): boolean =>
  preferences().motion === 'reduced' || matchMedia('(prefers-reduced-motion: reduce)').matches

function stored(): Preferences {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? '{}') as Partial<Preferences>
    return {
      theme: found.theme === 'dark' || found.theme === 'light' ? found.theme : DEFAULTS.theme,
      singleKeys: found.singleKeys !== false,
      motion: found.motion === 'reduced' ? 'reduced' : 'system',
    }
  } catch {
    return DEFAULTS
  }
}
