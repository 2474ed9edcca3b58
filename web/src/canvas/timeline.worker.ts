import interUrl from '@fontsource-variable/inter/files/inter-latin-wght-normal.woff2?url'
import { Timeline } from './engine'
import type { FromTimeline, ToTimeline } from './protocol'

/** The timeline's own thread: it loads, composes, sums up and draws; the page only says what a user does. */
let timeline: Timeline | null = null

self.onmessage = (message: MessageEvent<ToTimeline>) => {
  if (message.data.op !== 'start') {
    timeline?.hear(message.data)
    return
  }
  const started = new Timeline(message.data, (said: FromTimeline) => self.postMessage(said))
  timeline = started
  const { canvas } = message.data
  const face = new FontFace('Inter Variable', `url(${interUrl})`, { weight: '100 900' })
  face
    .load()
    .then((loaded) => {
      ;(self as unknown as { readonly fonts: FontFaceSet }).fonts.add(loaded)
      const context = canvas.getContext('2d')
      if (context !== null) started.fontsChanged(context)
    })
    .catch(() => undefined) // names stand in the system's font then
}
