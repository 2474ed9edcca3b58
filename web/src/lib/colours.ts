/** Custom properties that a canvas is painted with: it cannot read them itself. */
const NAMES = [
  'bg0', 'bg1', 'bg2', 'bg3', 'line', 'line-strong', 'text1', 'text2', 'text3', 'accent', 'good', 'warn', 'bad',
  'volta', 'turing', 'ampere', 'ada', 'hopper', 'blackwell', 'amd', 'tpu', 'other', 'hypothetical',
  ...['gemm', 'gemm_quant', 'gemv', 'moe_gemm', 'attention_prefill', 'attention_decode', 'ssm', 'norm', 'act_quant', 'rope_kv', 'fused', 'collective', 'moe_routing', 'sampling_copy', 'unknown'].map((name) => `family-${name}`),
  ...['tensor', 'dram', 'l2', 'issue', 'launch', 'host', 'link', 'unknown'].map((name) => `bound-${name}`),
  ...['m20', 'm10', 'm5', '0', 'p5', 'p10', 'p20'].map((name) => `error-${name}`),
]

export type Rgb = readonly [number, number, number]

/** Every token's colour in the theme of now. */
export function resolvedColours(): Readonly<Record<string, Rgb>> {
  const probe = document.createElement('span')
  probe.hidden = true
  document.body.append(probe)
  const style = getComputedStyle(probe)
  const colours: Record<string, Rgb> = {}
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`
    const [red = 128, green = 128, blue = 128] = (style.color.match(/[\d.]+/g) ?? []).map(Number)
    colours[name] = [red, green, blue]
  }
  probe.remove()
  return colours
}

/** Called with every change of the theme, by whoever made it; answers how to stop. */
export function onTheme(changed: () => void): () => void {
  const system = matchMedia('(prefers-color-scheme: dark)')
  system.addEventListener('change', changed)
  const observer = new MutationObserver(changed)
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] })
  return () => {
    system.removeEventListener('change', changed)
    observer.disconnect()
  }
}

/** A token as a canvas takes it, in the theme of now. */
export type Ink = (token: string) => string

export function ink(): Ink {
  const colours = resolvedColours()
  return (token) => `rgb(${(colours[token] ?? [128, 128, 128]).join(', ')})`
}
