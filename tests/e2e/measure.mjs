// Figures of the page in a real browser: `node measure.mjs NAME '{"url": …}'` prints them as JSON. What is good enough is
// for the caller to say; a slow machine makes larger figures, never a failure here.
import { createRequire } from 'node:module'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'

const require = createRequire(new URL('../../web/package.json', import.meta.url))
const { chromium } = require('playwright-core')
const [name, given] = process.argv.slice(2)
const options = JSON.parse(given)
const profile = await mkdtemp(join(tmpdir(), 'cascade-measure-'))
const context = await chromium.launchPersistentContext(profile, {
  executablePath: options.chromium,
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  viewport: { width: 1440, height: 900 },
})
const page = context.pages()[0] ?? (await context.newPage())
page.setDefaultTimeout(options.timeout_ms ?? 120_000)
const complaints = []
page.on('console', (message) => message.type() === 'error' && complaints.push(message.text()))
page.on('pageerror', (error) => complaints.push(String(error)))

const FRAMES = options.frames ?? 300
const WARM_UP = 60

const quantiles = (values) => {
  const sorted = [...values].sort((a, b) => a - b)
  const at = (share) => Number((sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN).toFixed(2))
  return { n: sorted.length, p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1) }
}

async function enter(path) {
  await page.goto(`${options.url}/?token=${options.token}`)
  await page.getByRole('heading', { level: 1 }).first().waitFor()
  await page.goto(`${options.url}${path}`)
}

/** Heap after a forced collection, page and workers, in MB: what V8 uses and the buffers it holds. */
async function heapMb() {
  const session = await context.newCDPSession(page)
  const used = async (send) => {
    await send('HeapProfiler.enable')
    await send('HeapProfiler.collectGarbage')
    const { usedSize, backingStorageSize = 0 } = await send('Runtime.getHeapUsage')
    return (usedSize + backingStorageSize) / 1e6
  }
  const found = { page: await used((method) => session.send(method)), workers: 0 }
  const workers = []
  const waiting = new Map()
  session.on('Target.attachedToTarget', ({ sessionId, targetInfo }) => targetInfo.type === 'worker' && workers.push(sessionId))
  session.on('Target.receivedMessageFromTarget', ({ message }) => {
    const { id, result, error } = JSON.parse(message)
    waiting.get(id)?.(error ? Promise.reject(new Error(error.message)) : result)
  })
  await session.send('Target.setAutoAttach', { autoAttach: true, waitForDebuggerOnStart: false, flatten: false })
  await page.waitForTimeout(300)
  let id = 0
  for (const sessionId of workers) {
    const send = (method) => {
      id += 1
      const answer = new Promise((resolve) => waiting.set(id, resolve))
      void session.send('Target.sendMessageToTarget', { sessionId, message: JSON.stringify({ id, method }) })
      return answer
    }
    found.workers += await used(send)
  }
  return { page: Math.round(found.page), workers: Math.round(found.workers), workerCount: workers.length }
}

/** CPU time of the page's main thread while something is done, ms: what a busy machine beside it does not change. */
async function mainThread(act) {
  const session = await context.newCDPSession(page)
  await session.send('Performance.enable', { timeDomain: 'threadTicks' })
  const now = async () => (await session.send('Performance.getMetrics')).metrics.find(({ name: metric }) => metric === 'TaskDuration').value * 1000
  const before = await now()
  const found = await act()
  const cpuMs = (await now()) - before
  await session.detach()
  return { found, cpuMs }
}

const each = (total, n) => Number((total / n).toFixed(2))

/** The page's own animation frames while something is done; the first ones are left out. */
async function frames(act) {
  await page.evaluate(() => {
    globalThis.deltas = []
    let before = performance.now()
    const next = (now) => {
      globalThis.deltas.push(now - before)
      before = now
      globalThis.watching = requestAnimationFrame(next)
    }
    globalThis.watching = requestAnimationFrame(next)
  })
  await act()
  const deltas = await page.evaluate(() => {
    cancelAnimationFrame(globalThis.watching)
    return globalThis.deltas
  })
  return deltas.slice(WARM_UP)
}

/** Scrolled from end to end and back, a step a frame. */
const toAndFro = (scroller) =>
  scroller.evaluate(
    (element, count) =>
      new Promise((resolve) => {
        let turn = 0
        const step = () => {
          element.scrollTop = (element.scrollHeight - element.clientHeight) * (0.5 + 0.5 * Math.sin(turn / 40))
          turn += 1
          if (turn < count) requestAnimationFrame(step)
          else resolve()
        }
        requestAnimationFrame(step)
      }),
    FRAMES + WARM_UP,
  )

const perf = async () => {
  await page.evaluate(() => window.dispatchEvent(new Event('cascade:perf')))
  await page.waitForTimeout(150)
  return JSON.parse((await page.getByTestId('perf').textContent()) || '{}')
}

const scenarios = {
  /** A million launches on eight GPUs: first paint, then zooming and panning by real wheel events. */
  async timeline() {
    await enter(`/runs/${options.run}/timeline?perf=1`)
    const began = Date.now()
    let first = {}
    while (!(first.firstPaintMs > 0)) {
      await page.waitForTimeout(100)
      first = await perf()
      if (Date.now() - began > 110_000) throw new Error('no first paint')
    }
    const shownMs = Date.now() - began
    const status = await page.getByRole('toolbar', { name: 'Timeline' }).innerText()
    const canvas = await page.locator('canvas').boundingBox()
    const [x, y] = [canvas.x + canvas.width * 0.55, canvas.y + canvas.height * 0.4]
    await page.mouse.move(x, y)
    await page.waitForTimeout(500)
    await perf()
    const zoom = await frames(async () => {
      for (let turn = 0; turn < FRAMES + WARM_UP; turn += 1) {
        // In and out over five decades, panning a little each time.
        await page.mouse.wheel(turn % 5 === 0 ? 30 : 0, Math.floor(turn / 90) % 2 === 0 ? -90 : 90)
        await page.waitForTimeout(8)
      }
    })
    const during = await perf()
    const drag = await frames(async () => {
      await page.mouse.down()
      for (let turn = 0; turn < FRAMES / 2 + WARM_UP; turn += 1) {
        await page.mouse.move(x + 300 * Math.sin(turn / 20), y)
        await page.waitForTimeout(8)
      }
      await page.mouse.up()
    })
    const dragged = await perf()
    return {
      status,
      shownMs,
      firstPaintMs: first.firstPaintMs,
      allPaintMs: (await perf()).allPaintMs,
      spans: first.spans,
      page: { zoom: quantiles(zoom), drag: quantiles(drag) },
      worker: { zoom: quantiles(during.frameMs ?? []), drag: quantiles(dragged.frameMs ?? []) },
      drawMs: { zoom: quantiles(during.drawMs ?? []), drag: quantiles(dragged.drawMs ?? []) },
      heapMb: await heapMb(),
    }
  },

  /** A million lines: scrolled frame by frame, looked at where one ends up, searched. */
  async log() {
    await enter(`/runs/${options.run}`)
    const pane = page.getByRole('log')
    await page.getByText(/^[\d\s]+ lines$/).first().waitFor()
    await pane.scrollIntoViewIfNeeded()
    await page.waitForTimeout(500)
    const total = await page.getByText(/^[\d\s]+ lines$/).first().innerText()
    const { found: scroll, cpuMs } = await mainThread(() => frames(() => toAndFro(pane)))
    const at = async (share) => {
      await pane.evaluate((element, way) => {
        element.scrollTop = (element.scrollHeight - element.clientHeight) * way
      }, share)
      await page.waitForTimeout(700)
      return (await pane.locator('div > div').evaluateAll((rows) => rows.filter((row) => !row.hidden && row.childElementCount === 2).map((row) => row.innerText.replace(/\s+/g, ' ')))).slice(0, 40)
    }
    const seen = { end: (await at(1)).at(-1), middle: (await at(0.5))[5], start: (await at(0))[0] }
    await page.getByRole('searchbox', { name: 'Search the log' }).fill(`line ${options.wanted ?? 777777} `)
    const asked = Date.now()
    await page.keyboard.press('Enter')
    await page.getByText(/1 match/).waitFor()
    await page.locator('mark').first().waitFor()
    return { total, frames: quantiles(scroll), cpuMsPerFrame: each(cpuMs, scroll.length + WARM_UP), seen, search: { ms: Date.now() - asked, line: await page.locator('mark').first().innerText() }, heapMb: await heapMb() }
  },

  /** A thousand runs, from the click to the rows. */
  async list() {
    await enter('/settings')
    await page.getByRole('link', { name: 'Runs' }).waitFor()
    const took = await page.evaluate(async () => {
      const began = performance.now()
      ;[...document.querySelectorAll('a')].find((link) => link.textContent === 'Runs').click()
      const rows = () => document.querySelectorAll('[role=table] [role=row]').length
      while (rows() < 10) await new Promise((resolve) => requestAnimationFrame(resolve))
      await new Promise((resolve) => requestAnimationFrame(resolve))
      return performance.now() - began
    })
    const said = await page.getByText(/runs?$/).first().innerText()
    const table = page.getByRole('table', { name: 'Runs' })
    const scroll = await frames(() =>
      table.evaluate(
        (element, count) =>
          new Promise((resolve) => {
            let turn = 0
            const step = () => {
              element.scrollTop += 120
              turn += 1
              if (turn < count) requestAnimationFrame(step)
              else resolve()
            }
            requestAnimationFrame(step)
          }),
        FRAMES,
      ),
    )
    return { tookMs: Math.round(took), said, scroll: quantiles(scroll) }
  },

  /** How long an event takes from the log to the screen, while they come in; another page watches and reads nothing. */
  async latency() {
    await enter(`/runs/${options.run}?perf=1`)
    await page.getByTestId('moment').waitFor()
    // One that subscribes and never gives a credit back.
    await page.evaluate((run) => {
      const address = new URL('/ws', location.href)
      address.protocol = address.protocol.replace('http', 'ws')
      globalThis.silent = new WebSocket(address)
      globalThis.silent.onopen = () => globalThis.silent.send(JSON.stringify({ op: 'subscribe', run, from: { position: 0 }, types: [] }))
    }, options.run)
    console.log(JSON.stringify({ ready: true }))
    await page.waitForTimeout(options.seconds * 1000)
    const took = JSON.parse((await page.evaluate(() => document.documentElement.dataset.perfFeed)) ?? '[]')
    return { eventToPixelMs: quantiles(took.length > 100 ? took.slice(20) : took), moment: await page.getByTestId('moment').innerText() }
  },

  /** Scrubbing wildly: how long until the place asked for is shown. */
  async seek() {
    await enter(`/runs/${options.run}`)
    await page.getByTestId('moment').getByText(/of/).waitFor()
    await page.waitForFunction((least) => Number(document.querySelector('input[aria-label="Position in the log"]')?.max) >= least, options.records ?? 1)
    await page.waitForTimeout(1500)
    const { found: took, cpuMs } = await mainThread(() => page.evaluate(async (count) => {
      const input = document.querySelector('input[aria-label="Position in the log"]')
      const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set
      const times = []
      for (let turn = 0; turn < count; turn += 1) {
        const to = Math.floor(Number(input.max) * (0.02 + (0.96 * ((turn * 7919) % count)) / count))
        const began = performance.now()
        set.call(input, String(to))
        input.dispatchEvent(new Event('input', { bubbles: true }))
        await new Promise((resolve) => requestAnimationFrame(() => resolve()))
        times.push(performance.now() - began)
      }
      return times
    }, 200))
    return { records: Number(await page.getByRole('slider', { name: 'Position in the log' }).getAttribute('max')), seekMs: quantiles(took), cpuMsPerSeek: each(cpuMs, took.length), heapMb: await heapMb() }
  },

  /** A what-if slider dragged by key presses: from the press to the number it gives, and what of it the server took. */
  async whatif() {
    await enter(`/runs/${options.run}/whatif`)
    const slider = page.getByRole('slider', { name: 'DRAM' })
    await slider.waitFor()
    await slider.focus()
    const answer = page.getByRole('region', { name: 'Answer' })
    const took = []
    const asked = []
    page.on('requestfinished', (request) => request.url().endsWith('/api/what-if') && asked.push(request.timing().responseEnd))
    for (let turn = 0; turn < 60; turn += 1) {
      took.push(
        await answer.evaluate(
          (element, up) =>
            new Promise((resolve) => {
              const input = document.querySelector('input[type=range][aria-label="DRAM"]')
              const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set
              const began = performance.now()
              let isAsked = false
              set.call(input, String(up))
              input.dispatchEvent(new Event('input', { bubbles: true }))
              const look = () => {
                const isBusy = element.getAttribute('aria-busy') === 'true'
                if (isAsked && !isBusy) resolve(performance.now() - began)
                else requestAnimationFrame(look)
                isAsked ||= isBusy
              }
              requestAnimationFrame(look)
            }),
          0.205 + (0.6 * ((turn * 37) % 60)) / 60, // never stock, about which nothing is asked
        ),
      )
      await page.waitForTimeout(30)
    }
    return { pressToNumberMs: quantiles(took.slice(5)), requestMs: quantiles(asked.slice(5)) }
  },

  /** The kernel table of a run with many signatures: each column sorted by a click, then scrolled. */
  async kernels() {
    await enter(`/runs/${options.run}/kernels`)
    const table = page.getByRole('table', { name: 'Kernels by signature' })
    await table.getByRole('row').nth(10).waitFor()
    await page.waitForTimeout(1500)
    const said = await page.getByText(/signatures/).first().innerText()
    const heads = table.getByRole('columnheader').getByRole('button')
    const sorts = {}
    for (let column = 0; column < (await heads.count()); column += 1) {
      const name = (await heads.nth(column).innerText()).trim()
      sorts[name] = await heads.nth(column).evaluate(
        (button) =>
          new Promise((resolve) => {
            const began = performance.now()
            button.click()
            requestAnimationFrame(() => setTimeout(() => resolve(Math.round(performance.now() - began))))
          }),
      )
      await page.waitForTimeout(100)
    }
    const { found: scroll, cpuMs } = await mainThread(() => frames(() => toAndFro(table)))
    return { said, sortMs: sorts, scroll: quantiles(scroll), cpuMsPerFrame: each(cpuMs, scroll.length + WARM_UP) }
  },

  /** What the first view costs in script, compressed as a server would. */
  async scripts() {
    const bodies = []
    page.on('response', async (response) => {
      if (response.request().resourceType() === 'script') bodies.push(response.body().then((body) => ({ name: response.url().split('/').pop(), bytes: gzipSync(body).length })))
    })
    await page.goto(`${options.url}/?token=${options.token}`)
    await page.getByRole('heading', { level: 1 }).first().waitFor()
    await page.waitForTimeout(1500)
    const loaded = await Promise.all(bodies)
    return { bytes: loaded.reduce((sum, { bytes }) => sum + bytes, 0), files: loaded }
  },
}

let found
try {
  found = { ok: true, found: await scenarios[name]() }
} catch (error) {
  found = { ok: false, error: String(error), address: page.url(), text: await page.locator('body').innerText().catch(() => '') }
} finally {
  await context.close()
  await rm(profile, { recursive: true, force: true })
}
console.log(JSON.stringify({ ...found, complaints }))
