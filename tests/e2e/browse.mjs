// One scenario in a real browser: `node browse.mjs NAME '{"url": …}'` prints what it found as JSON.
// Driven by pytest, which judges; this file only does what a user does and says what a user sees.
import { mkdtemp, rm } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const require = createRequire(new URL('../../web/package.json', import.meta.url))
const { chromium } = require('playwright-core')
const axeSource = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8')

const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]

const [name, given] = process.argv.slice(2)
const options = JSON.parse(given)
const profile = await mkdtemp(join(tmpdir(), 'cascade-e2e-'))
const context = await chromium.launchPersistentContext(profile, {
  executablePath: options.chromium,
  args: FLAGS,
  viewport: options.viewport ?? { width: 1440, height: 900 },
  colorScheme: options.theme ?? 'dark',
  acceptDownloads: true,
})
const page = context.pages()[0] ?? (await context.newPage())
page.setDefaultTimeout(options.timeout_ms ?? 20_000)
const complaints = []
page.on('console', (message) => {
  if (message.type() === 'error' || message.type() === 'warning') complaints.push(message.text())
})
page.on('pageerror', (error) => complaints.push(String(error)))
page.on('request', (request) => {
  if (!request.url().startsWith(new URL(options.url).origin) && !request.url().startsWith('data:')) {
    complaints.push(`asked elsewhere: ${request.url()}`)
  }
})

// --- what a user sees -----------------------------------------------------------------------------------------------

const table = () => page.getByTestId('results').locator('tbody tr').allInnerTexts()
const moment = () => page.getByTestId('moment').innerText()
const scrubber = () => page.getByRole('slider', { name: 'Position in the log' })
const isOver = () => page.getByText('all known').waitFor()

/** What was provoked: each refusal and each broken connection is said in the console by the browser itself. */
function forgive(pattern) {
  complaints.splice(0, complaints.length, ...complaints.filter((complaint) => !pattern.test(complaint)))
}

async function scrub(position) {
  await scrubber().evaluate((input, value) => {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(input, String(value))
    input.dispatchEvent(new Event('input', { bubbles: true }))
  }, position)
}

async function violations() {
  await page.evaluate(axeSource)
  const found = await page.evaluate(() =>
    globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }),
  )
  return found.violations.map(({ id, impact, nodes }) => ({
    id,
    impact,
    where: nodes.slice(0, 4).map((node) => node.html.slice(0, 200) + ' ' + (node.failureSummary ?? '').slice(0, 200)),
  }))
}

/** Sum of layout shifts from now on, as browsers count them. */
async function watchShifts() {
  await page.evaluate(() => {
    globalThis.shifts = 0
    globalThis.shiftsOf = []
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) {
        globalThis.shifts += entry.value
        globalThis.shiftsOf.push(...entry.sources.map((source) => source.node?.className ?? String(source.node)))
      }
    }).observe({ type: 'layout-shift', buffered: false })
  })
}
const shifts = () => page.evaluate(() => ({ sum: globalThis.shifts, of: globalThis.shiftsOf }))

async function screen(of) {
  if (options.folder) await page.screenshot({ path: join(options.folder, `${of}-${options.theme ?? 'dark'}.png`) })
}

// --- scenarios ------------------------------------------------------------------------------------------------------

const scenarios = {
  /** From an empty home to the example's answer. */
  async example() {
    await page.goto(`${options.url}/?token=${options.token}`)
    const address = page.url()
    await page.getByRole('button', { name: 'Open the example' }).first().click()
    await page.waitForURL('**/runs/*')
    await page.getByRole('list', { name: 'Configs' }).locator('li').nth(7).waitFor()
    await watchShifts()
    await isOver()
    const rings = await page.getByRole('progressbar', { name: 'Tasks simulated' }).evaluateAll((all) =>
      all.map((ring) => [Number(ring.getAttribute('aria-valuenow')), Number(ring.getAttribute('aria-valuemax'))]),
    )
    return {
      address,
      rings,
      run: page.url().split('/').pop(),
      tiles: await page.getByRole('list', { name: 'Configs' }).locator('li').allInnerTexts(),
      table: await table(),
      headline: await page.locator('p[aria-live=polite]').innerText(),
      badge: await page.getByText('recorded on CPU').count(),
      log: await page.getByRole('log').innerText(),
      shifts: await shifts(),
    }
  },

  /** Back through the log, and to its end again. */
  async scrub() {
    await page.goto(`${options.url}/runs/${options.run}?token=${options.token}`)
    await isOver()
    const before = { table: await table(), moment: await moment(), log: await page.getByRole('log').innerText() }
    const end = Number(await scrubber().getAttribute('max'))
    await scrub(Math.floor(end / 2))
    await page.waitForURL('**at=*')
    const middle = { table: await table(), moment: await moment(), address: page.url() }
    await scrub(0)
    const start = { moment: await moment() }
    await scrub(end)
    await page.waitForURL((url) => !url.search.includes('at='))
    // The log's lines of the moment are asked for where scrubbing rests.
    await page.waitForFunction((text) => document.querySelector('[role=log]').innerText === text, before.log)
    const after = { table: await table(), moment: await moment(), log: await page.getByRole('log').innerText() }
    await page.goto(middle.address)
    await page.getByText('as it was known then').waitFor()
    await page.waitForFunction((text) => document.querySelector('[data-testid=moment]')?.textContent === text, middle.moment)
    const again = { table: await table() }
    await page.getByRole('button', { name: 'End' }).click()
    const ended = { table: await table() }
    return { before, middle, start, after, again, ended, end }
  },

  /** Every button and key of the time bar without a mouse. */
  async keyboard() {
    await page.goto(`${options.url}/runs/${options.run}?token=${options.token}`)
    await isOver()
    await scrubber().focus()
    await page.keyboard.press('Home')
    const home = await moment()
    await page.keyboard.press('ArrowRight')
    const one = await moment()
    await page.keyboard.press('End')
    const end = await moment()
    await page.getByRole('button', { name: 'Play' }).focus()
    await page.locator('#speed').selectOption('100')
    await page.getByRole('button', { name: 'Play' }).press('Enter')
    await page.getByText('as it was known then').waitFor({ timeout: 3000 }).catch(() => undefined)
    await page.getByRole('button', { name: 'Play' }).waitFor()
    await page.getByText('all known').waitFor()
    return { home, one, end, played: await moment() }
  },

  /** With a wrong token there is a sentence and nothing else; with none, a field for it. */
  async denied() {
    const response = await page.goto(`${options.url}/?token=wrong`)
    const wrong = { status: response.status(), text: await page.locator('body').innerText() }
    await page.goto(`${options.url}/runs/${options.run ?? 'x'}`)
    await page.getByLabel('Token').waitFor()
    const cookies = await context.cookies()
    await page.getByLabel('Token').fill(options.token)
    await page.getByRole('button', { name: 'Open' }).click()
    await page.waitForURL((url) => !url.search.includes('token'))
    await isOver()
    forgive(/status of 401/)
    return { wrong, cookiesBefore: cookies.length, heading: await page.getByRole('heading', { level: 1 }).innerText(), address: page.url() }
  },

  /** A trace by the file button, one by drop, one that is none. */
  async upload() {
    await page.goto(`${options.url}/?token=${options.token}`)
    const [chooser] = await Promise.all([
      page.waitForEvent('filechooser'),
      page.getByRole('button', { name: 'Import files…' }).click(),
    ])
    await chooser.setFiles(options.trace)
    const row = page.getByRole('region', { name: 'Import a trace' }).getByRole('listitem')
    await row.getByText(/kernels?,/).waitFor()
    const imported = await row.innerText()
    const transfer = await page.evaluateHandle(() => {
      const carried = new DataTransfer()
      carried.items.add(new File(['\u0089PNG not a trace'], 'holiday.png', { type: 'image/png' }))
      return carried
    })
    await page.dispatchEvent('body', 'dragover', { dataTransfer: transfer })
    await page.getByText('Let go to import').waitFor()
    await page.dispatchEvent('body', 'drop', { dataTransfer: transfer })
    await row.first().getByRole('alert').waitFor()
    const refused = await row.first().innerText()
    await screen('import')
    await row.last().getByRole('link', { name: 'New run' }).click()
    await page.getByRole('button', { name: /^Run on/ }).waitFor()
    await page.getByRole('button', { name: 'None' }).click()
    await page.getByRole('checkbox', { name: /H100 SXM/ }).first().check()
    await page.getByLabel('GPUs that nobody has built').fill('h100_sxm:dram_gbps=6000')
    const cli = await page.locator('code').filter({ hasText: '.venv/bin/cascade run' }).innerText()
    await page.getByLabel('GPUs that nobody has built').fill('h100_sxm:magic=1')
    await page.getByRole('button', { name: /^Run on/ }).click()
    const mistake = await page.getByRole('alert').innerText()
    forgive(/status of 400/)
    await page.getByLabel('GPUs that nobody has built').fill('h100_sxm:dram_gbps=6000')
    await page.getByRole('button', { name: /^Run on/ }).click()
    await page.waitForURL('**/runs/*')
    await isOver()
    return { imported, refused, cli, mistake, table: await table() }
  },

  /** Kill and restart: the page says so, and goes on by itself. The test restarts the server meanwhile. */
  async reconnect() {
    await page.goto(`${options.url}/?token=${options.token}`)
    await page.getByRole('heading', { level: 1 }).waitFor()
    const run = await page.evaluate(async (body) => {
      const asked = { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }
      return (await (await fetch('/api/runs', asked)).json()).run_id
    }, options.body)
    await page.goto(`${options.url}/runs/${run}`)
    await page.getByRole('list', { name: 'Configs' }).locator('li').first().waitFor()
    console.log(JSON.stringify({ ready: true }))
    await page.getByText('Reconnecting.').waitFor()
    const shown = await page.getByRole('list', { name: 'Configs' }).locator('li').count()
    await page.getByText('all known').waitFor({ timeout: 60_000 })
    await page.getByText('Reconnecting.').waitFor({ state: 'detached' })
    forgive(/ERR_CONNECTION|WebSocket connection|status of 401/)
    return { shown, table: await table() }
  },

  /** What is shown where a part of the server has stopped. */
  async stopped() {
    await page.goto(`${options.url}/?token=${options.token}`)
    const strip = page.getByRole('status').filter({ hasText: 'has stopped' })
    await strip.waitFor()
    await screen('stopped')
    forgive(/status of 503/)
    return { said: await strip.innerText(), faults: await violations() }
  },

  /** axe on every screen; pictures of them where a folder is given. */
  async screens() {
    const found = {}
    await page.goto(`${options.url}/?token=${options.token}`)
    await page.getByRole('heading', { name: 'Runs', exact: true }).waitFor()
    found.home = await violations()
    await screen('home')
    await page.locator('summary').click()
    found.options = await violations()
    await screen('home-options')
    await page.goto(`${options.url}/new`)
    await page.getByRole('checkbox').nth(10).waitFor()
    found.new = await violations()
    await screen('new')
    await page.goto(`${options.url}/runs/${options.run}`)
    await isOver()
    found.run = await violations()
    await screen('run')
    await page.mouse.wheel(0, 4000)
    await page.waitForTimeout(300)
    await screen('run-below')
    await page.evaluate(() => window.scrollTo(0, 0))
    await scrub(Math.floor(Number(await scrubber().getAttribute('max')) * 0.93))
    await page.waitForURL('**at=*')
    found.replay = await violations()
    await screen('replay')
    await page.goto(`${options.url}/runs/${options.run}/timeline?color=bound`)
    await page.getByRole('application').locator('canvas').waitFor()
    await page.getByRole('toolbar', { name: 'Timeline' }).getByText(/^1 (px|launch) = /).waitFor()
    const canvas = await page.locator('canvas').boundingBox()
    await page.mouse.click(canvas.x + canvas.width / 2, canvas.y + 92)
    await page.getByRole('region', { name: 'Launch' }).waitFor()
    const narrower = await page.locator('canvas').boundingBox() // the inspector has opened beside it
    await page.mouse.move(narrower.x + 300, narrower.y + 43)
    await page.mouse.down()
    await page.mouse.move(narrower.x + 600, narrower.y + 43, { steps: 4 })
    await page.mouse.up()
    await page.getByRole('region', { name: 'Area', exact: true }).waitFor()
    found.timeline = await violations()
    await screen('timeline')
    await page.locator('body').press('t')
    await page.getByRole('table', { name: 'Launches in view' }).waitFor()
    found.twin = await violations()
    await page.keyboard.press('?')
    await page.getByRole('dialog', { name: 'Keys' }).waitFor()
    found.keys = await violations()
    await page.keyboard.press('Escape')
    await page.keyboard.press('Control+k')
    await page.getByRole('dialog', { name: 'Search and commands' }).getByRole('combobox').fill('gemm')
    await page.getByRole('dialog', { name: 'Search and commands' }).getByRole('option').first().waitFor()
    found.palette = await violations()
    await page.keyboard.press('Escape')
    await page.goto(`${options.url}/runs/${options.run}`)
    await isOver()
    await page.getByRole('link', { name: 'Compare' }).click()
    await page.getByRole('heading', { name: 'Verdict' }).waitFor()
    await page.getByRole('table', { name: 'Kernels compared' }).waitFor()
    found.compare = await violations()
    await screen('compare')
    await page.goto(`${options.url}/runs`)
    await page.getByRole('table', { name: 'Runs' }).waitFor()
    found.runs = await violations()
    await page.goto(`${options.url}/nowhere`)
    await page.getByRole('heading', { name: 'There is no such page' }).waitFor()
    found.nowhere = await violations()
    await page.goto(`${options.url}/runs/nothing`)
    await page.getByRole('heading', { name: 'This run cannot be shown' }).waitFor()
    await screen('gone')
    found.gone = await violations()
    await context.clearCookies()
    await page.goto(options.url)
    await page.getByLabel('Token').waitFor()
    await screen('denied')
    found.denied = await violations()
    forgive(/status of 401/)
    return found
  },
  /** A moment of a replay: the log as it was then, the hash of the state, and the same end again. A link opens the log at its line. */
  async moments() {
    await page.goto(`${options.url}/runs/${options.run}?line=1&q=tasks&token=${options.token}`)
    await isOver()
    const pane = page.getByRole('log')
    await pane.locator('mark').first().waitFor()
    const linked = await pane.locator('[class*=found]').innerText()
    const lines = async () => Number((await page.getByText(/^[\d\s]+ lines?$/).first().innerText()).replace(/\D/g, ''))
    const hash = (words) => page.getByText(words).locator('code').innerText()
    await page.getByText('identical end state').waitFor()
    const end = { lines: await lines(), hash: await hash('identical end state') }
    await page.getByRole('searchbox', { name: 'Search the log' }).fill('failed')
    await page.waitForURL((url) => url.searchParams.get('line') === null && url.searchParams.get('q') === 'failed')
    await page.getByRole('button', { name: 'Next match' }).click()
    await page.waitForURL((url) => url.searchParams.get('line') === '1')
    await scrub(3)
    await page.waitForURL('**at=3*')
    await page.getByText('No line had been said by then.').waitFor()
    await page.getByText(/^state/).locator('code').waitFor()
    const early = await page.getByText(/^state/).locator('code').innerText()
    await page.getByRole('button', { name: 'End' }).click()
    await page.getByText('identical end state').waitFor()
    await page.waitForFunction((wanted) => [...document.querySelectorAll('span')].some((one) => one.textContent.replace(/\D/g, '') === String(wanted) && /lines?$/.test(one.textContent)), end.lines)
    return { linked, end, early, again: { lines: await lines(), hash: await hash('identical end state') } }
  },

  /** The timeline by its address: a step by its number, a lane pinned, launches in columns; the same in Compare. */
  async lanes() {
    await page.goto(`${options.url}/runs/${options.run}/timeline?token=${options.token}`)
    const bar = page.getByRole('toolbar', { name: 'Timeline' })
    await bar.getByText(/^1 (px|launch) = /).waitFor()
    await page.keyboard.press('Control+k')
    await page.getByRole('combobox', { name: 'Search and commands' }).or(page.getByPlaceholder('What do you look for?')).first().fill(':step 2')
    await page.getByRole('option', { name: 'Step 2' }).click()
    await page.waitForURL('**t0=*')
    const step = new URL(page.url()).searchParams
    const canvas = await page.locator('canvas').first().boundingBox()
    await page.mouse.move(canvas.x + canvas.width / 2, canvas.y + 100)
    await page.keyboard.press('p')
    await page.waitForURL('**pins=*')
    const pinned = new URL(page.url()).searchParams.get('pins')
    await page.keyboard.press('p') // the pointer is over it still, or over the next one below the pin
    await bar.getByLabel('Align by').selectOption('kernel')
    await page.waitForURL('**align=kernel*')
    await page.waitForTimeout(300)
    await screen('timeline-kernel')
    await page.goto(`${options.url}/compare?${options.configs.slice(0, 2).map((config) => `v=${options.run}.${config}`).join('&')}`)
    await page.getByRole('group', { name: 'Align by' }).getByRole('button', { name: 'kernel' }).click()
    await page.waitForURL('**align=kernel*')
    return { step: { t0: step.get('t0'), t1: step.get('t1') }, pinned, compare: page.url() }
  },

  /** What is beside a kernel and a GPU: measured launches, nearest measured GPU, how often intervals held, drawn trends. */
  async beside() {
    await page.goto(`${options.url}/runs/${options.run}/kernels?token=${options.token}`)
    const table = page.getByRole('table', { name: 'Kernels by signature' })
    await table.getByRole('row').nth(3).waitFor()
    await page.waitForFunction(() => {
      const canvas = document.querySelector('[role=table] canvas')
      if (!canvas?.width || !canvas.height) return false
      // Of a copy: a canvas of the page that is read again and again makes the browser complain.
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true })
      copy.drawImage(canvas, 0, 0)
      return copy.getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0)
    })
    await table.getByRole('row').nth(2).click()
    const details = page.getByRole('region', { name: 'Kernel' })
    await details.getByText(options.histogram).waitFor()
    const kernel = await details.innerText()
    await screen('kernel')
    await page.goto(`${options.url}/runs/${options.run}/accuracy`)
    await page.getByRole('img', { name: /fell between p10 and p90/ }).first().waitFor()
    return { kernel, gpus: await page.getByRole('table', { name: 'Error per GPU' }).innerText() }
  },

  /** A trace dropped on the list of traces, and on a new run. */
  async dropped() {
    await page.goto(`${options.url}/${options.on}?token=${options.token}`)
    await page.getByRole('heading', { level: 1 }).waitFor()
    const transfer = await page.evaluateHandle((text) => {
      const carried = new DataTransfer()
      carried.items.add(new File([text], 'dropped.json', { type: 'application/json' }))
      return carried
    }, readFileSync(options.trace, 'utf8'))
    await page.dispatchEvent('body', 'dragover', { dataTransfer: transfer })
    await page.getByText('Let go to import').waitFor()
    await page.dispatchEvent('body', 'drop', { dataTransfer: transfer })
    const row = page.getByRole('region', { name: 'Import a trace' }).getByRole('listitem')
    await row.getByText(/kernels?,/).waitFor()
    return { row: await row.innerText() }
  },

  /** Every screen once: what axe says of it, and its picture where a folder was given. */
  async gallery() {
    await page.goto(`${options.url}/?token=${options.token}`)
    const run = `/runs/${options.run}`
    const of = (path) => `${path}${path.includes('?') ? '&' : '?'}theme=${options.theme}`
    const pages = [
      ['home', '/', page.getByRole('heading', { name: 'Runs', exact: true })],
      ['new-run', '/new?gpu=h100_sxm&gpu=b200_sxm&gpu=h100_sxm:dram_gbps=6000', page.getByText('148 SM').first()],
      ['traces', '/traces', page.getByRole('row').nth(1)],
      ['trace', `/traces/${options.trace}`, page.getByText('kernel launches')],
      ['trace-signatures', `/traces/${options.trace}?tab=signatures`, page.getByRole('row').nth(1)],
      ['live', run, page.getByText('all known')],
      ['timeline', `${run}/timeline`, page.locator('canvas').first()],
      ['kernels', `${run}/kernels`, page.getByRole('img', { name: /^Roofline/ })],
      ['predictions', `${run}/predictions`, page.locator('.uplot canvas')],
      ['what-if', `${run}/whatif?base=h100_sxm&set=dram_gbps:6000`, page.getByText(/re-predicted in/)],
      ['run-accuracy', `${run}/accuracy`, page.getByRole('heading', { name: 'Simulated beside measured' })],
      ['compare', `/compare?v=${options.run}.${options.configs[0]}&v=${options.run}.${options.configs[1]}`, page.getByText(/too close to call|faster|slower/).first()],
      ['gpus', '/gpus', page.getByText('Blackwell').first()],
      ['gpu', '/gpus/h100_sxm', page.getByText('DRAM bandwidth')],
      ['accuracy', '/accuracy', page.getByRole('row').nth(3)],
      ['sql', '/sql', page.getByTestId('editor')],
      ['settings', '/settings', page.getByText('largest upload')],
    ]
    const found = {}
    for (const [title, path, ready] of pages) {
      if (options.only && !options.only.includes(title)) continue
      await page.goto(`${options.url}${of(path)}`)
      await ready.waitFor()
      if (title === 'sql') {
        await page.getByRole('button', { name: /^Run/ }).click()
        await page.getByText(/rows? in/).waitFor()
      }
      if (title === 'kernels') {
        await page.getByRole('table', { name: /^Kernels/ }).getByRole('row').nth(1).click()
        await page.getByTestId('receipt').waitFor()
      }
      await page.waitForTimeout(title === 'timeline' ? 4000 : 600)
      await screen(title)
      found[title] = await violations()
    }
    return found
  },

  /** Statements that may not run, and one that may. */
  async sql() {
    await page.goto(`${options.url}/?token=${options.token}`)
    await page.goto(`${options.url}/sql`)
    const editor = page.getByRole('textbox', { name: 'SQL statement' })
    await editor.waitFor()
    const ask = async (statement) => {
      await editor.click()
      await page.keyboard.press('Control+A')
      await page.keyboard.insertText(statement)
      await page.keyboard.press('Control+Enter')
    }
    const refused = {}
    for (const statement of options.statements) {
      await ask(statement)
      await page.getByTestId('refused').waitFor()
      refused[statement] = { said: await page.getByTestId('refused').innerText(), marked: await page.getByTestId('refused').locator('mark').allInnerTexts() }
      await ask('select 1 as one')
      await page.getByText('1 row in').waitFor()
    }
    await ask('select label, count(*) as n from kernels where is_requested group by label order by label')
    await page.getByText('8 rows in').waitFor()
    const rows = await page.getByRole('table', { name: 'Rows' }).getByRole('row').allInnerTexts()
    await ask('select 1 as one, 2 as two')
    await page.getByText('1 row in').waitFor()
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'CSV', exact: true }).click()])
    const file = await download.path()
    forgive(/status of 400/)
    // Typing over text with colours makes Chromium write them into what it inserts; blocked, and drawn anew by the editor.
    forgive(/Applying inline style/)
    return { refused, rows, csv: readFileSync(file, 'utf8'), address: page.url() }
  },

  /** DRAM turned by the keyboard, by typing, and back. */
  async whatif() {
    await page.goto(`${options.url}/?token=${options.token}`)
    await page.goto(`${options.url}/runs/${options.run}/whatif?base=${options.base}`)
    const slider = page.getByRole('slider', { name: 'DRAM' })
    await slider.waitFor()
    const answer = () => page.getByTestId('answer').innerText()
    const settled = async () => {
      await page.getByText(/re-predicted in/).waitFor()
      await page.waitForTimeout(1500)
      return { answer: await answer(), config: await page.getByTestId('config').innerText() }
    }
    const stock = { answer: await answer(), config: await page.getByTestId('config').innerText() }
    await slider.focus()
    await slider.press('End')
    const most = await settled()
    await slider.press('Home')
    const least = await settled()
    await page.getByLabel('DRAM, typed').fill('6000')
    await page.getByLabel('DRAM, typed').press('Enter')
    const typed = await settled()
    const sentences = await page.getByRole('region').allInnerTexts()
    const address = page.url()
    await page.getByRole('button', { name: 'Keep as run' }).click()
    await page.waitForURL((url) => url.pathname.startsWith('/runs/') && !url.pathname.includes(options.run))
    await page.getByText('all known').waitFor({ timeout: 60_000 })
    return { stock, most, least, typed, sentences, address, kept: page.url().split('/runs/')[1].split('?')[0] }
  },

  /** From a kernel's row to the receipt of its time on another GPU. */
  async why() {
    await page.goto(`${options.url}/?token=${options.token}`)
    await page.goto(`${options.url}/runs/${options.run}/kernels`)
    await page.getByRole('table', { name: /^Kernels/ }).getByRole('row').nth(1).click()
    await page.getByTestId('receipt').waitFor()
    const first = await page.getByTestId('receipt').innerText()
    await page.getByRole('button', { name: /^Why .* on b200_sxm$/ }).click()
    await page.getByTestId('receipt').getByText('on NVIDIA B200').waitFor()
    const second = await page.getByTestId('receipt').innerText()
    const address = page.url()
    const table = page.getByRole('table', { name: /^Kernels/ })
    await table.evaluate((element) => (element.scrollTop = element.scrollHeight))
    const last = table.locator(`[aria-rowindex="${await table.getAttribute('aria-rowcount')}"]`)
    await last.getByRole('cell').nth(1).waitFor()
    return { first, second, address, heads: await table.getByRole('columnheader').count(), cells: 1 + (await last.getByRole('cell').count()) }
  },

  /** A run asked for with a refinement, and watched until its tiles have upgraded. */
  async refined() {
    await page.goto(`${options.url}/?token=${options.token}`)
    await page.goto(`${options.url}/new?trace=${options.plain}&gpu=a100_sxm_80gb`)
    await page.getByTestId('refine').getByText('no kernel of this trace has its instructions').waitFor()
    await page.goto(`${options.url}/new?trace=${options.trace}&gpu=a100_sxm_80gb&gpu=rtx_3090`)
    await page.getByTestId('refine').getByRole('radio', { name: /^sass/ }).check()
    const cli = await page.locator('code').filter({ hasText: '.venv/bin/cascade run' }).innerText()
    await screen('refine-new')
    await page.getByRole('button', { name: /^Run on/ }).click()
    const tiles = page.getByRole('list', { name: 'Configs' }).getByRole('listitem')
    const marks = page.locator('[data-refined]')
    const seen = []
    for (;;) {
      const texts = await marks.allInnerTexts()
      for (const text of texts) if (!seen.includes(text)) seen.push(text)
      if ((await page.locator('[data-refined="true"]').count()) === 2) break
      await page.waitForTimeout(20)
    }
    const tile = await tiles.first().innerText()
    const run = new URL(page.url()).pathname.split('/')[2]
    await screen('refine-live')
    await page.goto(`${options.url}/runs/${run}/kernels`)
    await page.getByRole('table', { name: /^Kernels/ }).getByRole('row').nth(1).click()
    await page.getByTestId('simulators').scrollIntoViewIfNeeded()
    const ended = page.getByText(/^(identical end state|state differs)/)
    await ended.waitFor()
    const state = await ended.innerText()
    await screen('refine-kernel')
    return { cli, seen, tile, run, state, simulators: await page.getByTestId('simulators').innerText(), receipt: await page.getByTestId('receipt').innerText() }
  },

  /** A run asked for without a mouse. */
  async newrun() {
    await page.goto(`${options.url}/?token=${options.token}`)
    await page.goto(`${options.url}/new?trace=${options.trace}&gpu=l4`)
    await page.getByRole('checkbox', { name: /^L40S/ }).waitFor()
    await page.getByRole('checkbox', { name: /^L40S/ }).focus()
    await page.keyboard.press('Space')
    await page.getByRole('slider', { name: 'DRAM', exact: true }).focus()
    await page.keyboard.press('End')
    await page.getByRole('button', { name: 'Add' }).focus()
    await page.keyboard.press('Enter')
    await page.getByLabel('Workers that share l4', { exact: true }).focus()
    await page.keyboard.press('ArrowUp')
    const chosen = await page.getByRole('list').filter({ has: page.getByLabel(/^Workers that share/) }).getByRole('listitem').allInnerTexts()
    const cli = await page.locator('code').filter({ hasText: '.venv/bin/cascade run' }).innerText()
    const impossible = await page.getByRole('radio', { name: /^sass/ }).isDisabled()
    await page.getByRole('button', { name: /^Run on 3 GPUs/ }).focus()
    await page.keyboard.press('Enter')
    await page.waitForURL('**/runs/**')
    await page.getByText('all known').waitFor({ timeout: 60_000 })
    return { chosen, cli, impossible, run: page.url().split('/runs/')[1].split('?')[0] }
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
