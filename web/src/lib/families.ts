/** What a kernel is for, in words and in colour. Several families share a hue; their label tells them apart. */
interface Shown {
  readonly word: string
  /** A colour token: var(--family-…). */
  readonly token: string
}

const SHOWN: Readonly<Record<string, Shown>> = {
  gemm: { word: 'GEMM', token: 'family-gemm' },
  splitk_reduce: { word: 'split-K reduce', token: 'family-gemv' },
  moe_gemm: { word: 'MoE GEMM', token: 'family-moe_gemm' },
  attention_prefill: { word: 'attention, prefill', token: 'family-attention_prefill' },
  attention_mixed: { word: 'attention, mixed', token: 'family-attention_prefill' },
  attention_decode: { word: 'attention, decode', token: 'family-attention_decode' },
  attention_combine: { word: 'attention, combine', token: 'family-attention_decode' },
  mla: { word: 'MLA', token: 'family-attention_decode' },
  state_space: { word: 'state space', token: 'family-ssm' },
  norm: { word: 'norm', token: 'family-norm' },
  reduction: { word: 'reduction', token: 'family-norm' },
  softmax: { word: 'softmax', token: 'family-norm' },
  activation: { word: 'activation', token: 'family-act_quant' },
  quantise: { word: 'quantise', token: 'family-act_quant' },
  rope: { word: 'RoPE', token: 'family-rope_kv' },
  kv_write: { word: 'KV write', token: 'family-rope_kv' },
  fused: { word: 'fused', token: 'family-fused' },
  elementwise: { word: 'elementwise', token: 'family-fused' },
  collective: { word: 'collective', token: 'family-collective' },
  moe_routing: { word: 'MoE routing', token: 'family-moe_routing' },
  sampling: { word: 'sampling', token: 'family-sampling_copy' },
  embedding: { word: 'embedding', token: 'family-sampling_copy' },
  copy: { word: 'copy', token: 'family-sampling_copy' },
}

const UNKNOWN: Shown = { word: 'not recognised', token: 'family-unknown' }

export const isFamily = (name: string): boolean => name === 'unknown' || name in SHOWN

export const familyShown = (family: string): Shown => SHOWN[family] ?? UNKNOWN

const BOUNDS: Readonly<Record<string, string>> = {
  tensor: 'tensor cores',
  dram: 'DRAM',
  l2: 'L2',
  issue: 'issue',
  launch: 'launch',
  host: 'host',
  link: 'link',
}

export const boundShown = (bound: string): Shown =>
  bound in BOUNDS ? { word: BOUNDS[bound] ?? bound, token: `bound-${bound}` } : { word: 'not known', token: 'bound-unknown' }

/** The diverging scale's token for a signed ratio of error or change: too fast is blue, too slow is orange. */
export function errorToken(ratio: number): string {
  const size = Math.abs(ratio)
  const step = size < 0.025 ? 0 : size < 0.075 ? 5 : size < 0.15 ? 10 : 20
  return step === 0 ? 'error-0' : `error-${ratio < 0 ? 'm' : 'p'}${step}`
}
