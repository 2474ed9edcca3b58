import { useEffect } from 'react'
import { keys, type Binding } from '../lib/keys'

/** Keys that act while this is on screen. Pass the same array as long as the keys mean the same. */
export function useKeys(bindings: readonly Binding[]): void {
  useEffect(() => keys.bind(bindings), [bindings])
}
