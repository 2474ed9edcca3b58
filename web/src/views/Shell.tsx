import { useQuery } from '@tanstack/react-query'
import { Link, Outlet } from '@tanstack/react-router'
import { useState } from 'react'
import { api, Refusal } from '../lib/api'
import styles from './Shell.module.css'

/** The frame of every page; where the token is missing it asks for it in place, and nothing else is asked before. */
export function Shell() {
  const about = useQuery({ queryKey: ['about'], queryFn: api.about, staleTime: Infinity })
  const isDenied = about.error instanceof Refusal && about.error.status === 401
  return (
    <>
      <a className={styles.skip} href="#main">
        Skip to content
      </a>
      <header className={styles.bar}>
        <Link to="/" className={styles.brand}>
          <Mark />
          Cascade
        </Link>
        <nav aria-label="Pages" className={styles.nav}>
          <Link to="/" activeOptions={{ exact: true }} activeProps={{ 'aria-current': 'page' }}>
            Home
          </Link>
          <Link to="/new" activeProps={{ 'aria-current': 'page' }}>
            New run
          </Link>
        </nav>
        <span className={styles.version}>{about.data && `v${about.data.version}`}</span>
      </header>
      <main id="main" tabIndex={-1} className={styles.main}>
        {isDenied ? <Denied /> : !about.isPending && <Outlet />}
      </main>
    </>
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
