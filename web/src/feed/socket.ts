import { decodeFrame, type FeedRecord } from './frames'

/** What /ws says in its text frames. */
export type Said =
  | { readonly op: 'hello'; readonly record_count: number; readonly is_complete: boolean }
  | { readonly op: 'at'; readonly id: number; readonly position: number; readonly record_count: number }
  | { readonly op: 'live'; readonly record_count: number }
  | { readonly op: 'fixed'; readonly record_count: number }
  | { readonly op: 'end'; readonly record_count: number }
  | { readonly op: 'error'; readonly error: string }

export interface Listener {
  readonly onSaid: (said: Said) => void
  readonly onRecords: (records: readonly FeedRecord[]) => void
  readonly onClosed: (code: number) => void
}

export interface Connection {
  readonly seek: (position: number, id: number) => void
  readonly close: () => void
}

/** Watch a run from a position on. A frame's credit is given back only once it has been folded. */
export function watch(runId: string, from: number, types: readonly string[], listener: Listener): Connection {
  const address = new URL('/ws', window.location.href)
  address.protocol = address.protocol.replace('http', 'ws')
  const socket = new WebSocket(address)
  socket.binaryType = 'arraybuffer'
  const say = (control: object) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(control))
  }
  socket.onopen = () => say({ op: 'subscribe', run: runId, from: { position: from }, types })
  socket.onmessage = (message: MessageEvent<string | ArrayBuffer>) => {
    if (typeof message.data === 'string') {
      listener.onSaid(JSON.parse(message.data) as Said)
    } else {
      listener.onRecords(decodeFrame(new Uint8Array(message.data)))
      say({ op: 'credit', count: 1 })
    }
  }
  socket.onclose = (closed) => listener.onClosed(closed.code)
  return {
    seek: (position, id) => say({ op: 'seek', position, id }),
    close: () => {
      socket.onclose = null
      socket.onmessage = null
      socket.close()
    },
  }
}
