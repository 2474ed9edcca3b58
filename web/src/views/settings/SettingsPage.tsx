import { useQuery } from '@tanstack/react-query'
import { useState, useSyncExternalStore } from 'react'
import { api } from '../../lib/api'
import { bytes } from '../../lib/format'
import { onPreferences, prefer, preferences, type Preferences } from '../../lib/preferences'
import { Page } from '../Page'
import { Problem } from '../Problem'
import styles from './SettingsPage.module.css'

/** What this browser prefers, and what the server is. */
export function SettingsPage() {
  const chosen = useSyncExternalStore(onPreferences, preferences)
  return (
    <Page title="Settings">
      <section className={`panel ${styles.section}`}>
        <Choice
          legend="Theme"
          name="theme"
          value={chosen.theme}
          choices={[
            ['system', 'As the system'],
            ['dark', 'Dark'],
            ['light', 'Light'],
          ]}
          onChoose={(theme: Preferences['theme']) => prefer({ theme })}
        />
        <Choice
          legend="Motion"
          name="motion"
          value={chosen.motion}
          choices={[
            ['system', 'As the system'],
            ['reduced', 'Reduced: nothing moves by itself, camera jumps are immediate'],
          ]}
          onChoose={(motion: Preferences['motion']) => prefer({ motion })}
        />
        <fieldset className={styles.field}>
          <legend>Keys</legend>
          <label>
            <input type="checkbox" checked={chosen.singleKeys} onChange={(event) => prefer({ singleKeys: event.target.checked })} />
            Single letters are commands
          </label>
          <p>Off for those whose input device types letters by chance. Keys with Control, arrows and Escape work in any case.</p>
        </fieldset>
      </section>
      <Token />
      <Server />
    </Page>
  )
}

function Choice<Value extends string>(props: {
  readonly legend: string
  readonly name: string
  readonly value: Value
  readonly choices: readonly (readonly [Value, string])[]
  readonly onChoose: (value: Value) => void
}) {
  return (
    <fieldset className={styles.field}>
      <legend>{props.legend}</legend>
      {props.choices.map(([value, words]) => (
        <label key={value}>
          <input type="radio" name={props.name} value={value} checked={props.value === value} onChange={() => props.onChoose(value)} />
          {words}
        </label>
      ))}
    </fieldset>
  )
}

function Token() {
  const [token, setToken] = useState('')
  return (
    <form
      className={`panel ${styles.section}`}
      onSubmit={(event) => {
        event.preventDefault()
        // The server exchanges it for a cookie and takes it out of the address.
        window.location.assign(`/settings?token=${encodeURIComponent(token.trim())}`)
      }}
    >
      <h2>Token</h2>
      <p>This browser keeps the server’s token in a cookie that no script can read. After the server was started with another one, paste it here.</p>
      <div className={styles.row}>
        <input className="field mono" aria-label="Token" autoComplete="off" spellCheck={false} value={token} onChange={(event) => setToken(event.target.value)} />
        <button className="button" disabled={token.trim() === ''}>
          Use this token
        </button>
      </div>
    </form>
  )
}

function Server() {
  const about = useQuery({ queryKey: ['about'], queryFn: api.about, staleTime: Infinity })
  return (
    <section className={`panel ${styles.section}`} aria-labelledby="server-title">
      <h2 id="server-title">Server</h2>
      {about.error && <Problem error={about.error} onRetry={() => void about.refetch()} />}
      {about.data && (
        <dl className={styles.facts}>
          <dt>version</dt>
          <dd>{about.data.version}</dd>
          <dt>simulators</dt>
          <dd>{about.data.simulators.join(', ')}</dd>
          <dt>models known</dt>
          <dd>{about.data.models.join(', ')}</dd>
          <dt>largest upload</dt>
          <dd>{bytes(about.data.upload_bytes_limit)}</dd>
          <dt>interface</dt>
          <dd>
            <a href="/api/openapi.json">OpenAPI</a>
          </dd>
        </dl>
      )}
    </section>
  )
}
