import { useEffect, useRef, useSyncExternalStore } from 'react'
import { keys, printed } from '../lib/keys'
import styles from './KeysOverlay.module.css'

/** All keys that act here, grouped; opened by `?`. */
export function KeysOverlay({ onClose }: { readonly onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null)
  const bindings = useSyncExternalStore(keys.subscribe, keys.bindings)
  useEffect(() => dialog.current?.showModal(), [])
  const groups = new Map<string, Map<string, string[]>>()
  for (const { group, words, keys: name } of bindings) {
    const rows = groups.get(group) ?? new Map<string, string[]>()
    rows.set(words, [...(rows.get(words) ?? []), name])
    groups.set(group, rows)
  }
  return (
    <dialog ref={dialog} className={styles.dialog} aria-labelledby="all-keys" onClose={onClose}>
      <div className={styles.head}>
        <h2 id="all-keys">Keys</h2>
        <form method="dialog">
          <button className="button quiet">Close</button>
        </form>
      </div>
      <div className={styles.groups}>
        {[...groups].map(([group, rows]) => (
          <section key={group} aria-label={group}>
            <h3>{group}</h3>
            <dl>
              {[...rows].map(([words, names]) => (
                <div key={words}>
                  <dt>
                    {[...new Set(names)].map((name) => (
                      <kbd key={name}>{printed(name)}</kbd>
                    ))}
                  </dt>
                  <dd>{words}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </dialog>
  )
}
