import { Command } from 'cmdk'
import { useEffect, useRef } from 'react'
import { keys, printed } from '../../lib/keys'
import styles from './Palette.module.css'

/** Everything that can be done here, by its words; each with its key. */
export function Palette({ onClose }: { readonly onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null)
  useEffect(() => dialog.current?.showModal(), [])
  const bindings = keys.bindings()
  return (
    <dialog ref={dialog} className={styles.dialog} aria-label="Search and commands" onClose={onClose}>
      <Command label="Search and commands">
        <Command.Input className={styles.input} placeholder="What do you look for?" autoFocus />
        <Command.List className={styles.list}>
          <Command.Empty className={styles.empty}>Nothing is called that.</Command.Empty>
          <Command.Group heading="Commands">
            {bindings.map((binding) => (
              <Command.Item
                key={`${binding.keys} ${binding.words}`}
                value={`${binding.words} ${binding.group}`}
                onSelect={() => {
                  dialog.current?.close()
                  binding.run(new KeyboardEvent('keydown'))
                }}
              >
                <span>{binding.words}</span>
                <kbd>{printed(binding.keys)}</kbd>
              </Command.Item>
            ))}
          </Command.Group>
        </Command.List>
      </Command>
    </dialog>
  )
}
