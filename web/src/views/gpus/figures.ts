import { bytes, count, rate } from '../../lib/format'
import type { GpuSpec } from '../../schema/events'

/** A GPU's figures in the order in which one reads them; the names are the file's. */
export interface Figure {
  readonly field: keyof GpuSpec
  readonly words: string
  readonly say: (spec: GpuSpec) => string
  /** The override that moves it, where one does. */
  readonly override: string
}

const flop = (field: keyof GpuSpec) => (spec: GpuSpec) => {
  const value = spec[field] as number
  return value === 0 ? 'none' : rate(value, 'FLOP')
}

export const FIGURES: readonly Figure[] = [
  { field: 'sm_count', words: 'SMs (AMD: compute units)', say: (spec) => count(spec.sm_count), override: 'sm' },
  { field: 'boost_hz', words: 'Boost clock', say: (spec) => rate(spec.boost_hz, 'Hz').replace('/s', ''), override: 'clock_ghz' },
  { field: 'bf16_flop_per_s', words: 'bf16, dense', say: flop('bf16_flop_per_s'), override: 'tensor_tflops' },
  { field: 'fp8_flop_per_s', words: 'fp8, dense', say: flop('fp8_flop_per_s'), override: 'fp8_tflops' },
  { field: 'int8_flop_per_s', words: 'int8, dense', say: flop('int8_flop_per_s'), override: 'int8_tops' },
  { field: 'fp4_flop_per_s', words: 'fp4, dense', say: flop('fp4_flop_per_s'), override: 'fp4_tflops' },
  { field: 'tf32_flop_per_s', words: 'tf32, dense', say: flop('tf32_flop_per_s'), override: 'tf32_tflops' },
  { field: 'fp32_flop_per_s', words: 'fp32, without tensor cores', say: flop('fp32_flop_per_s'), override: 'fp32_tflops' },
  { field: 'fp64_flop_per_s', words: 'fp64, without tensor cores', say: flop('fp64_flop_per_s'), override: 'fp64_tflops' },
  { field: 'dram_bytes', words: 'DRAM', say: (spec) => bytes(spec.dram_bytes), override: 'dram_gib' },
  { field: 'dram_bytes_per_s', words: 'DRAM bandwidth', say: (spec) => rate(spec.dram_bytes_per_s, 'B'), override: 'dram_gbps' },
  { field: 'copy_bytes_per_s', words: 'Copy rate, measured', say: (spec) => (spec.copy_bytes_per_s ? rate(spec.copy_bytes_per_s, 'B') : 'not measured'), override: '' },
  { field: 'l2_bytes', words: 'L2', say: (spec) => bytes(spec.l2_bytes), override: 'l2_mb' },
  { field: 'shared_memory_bytes_per_sm', words: 'Shared memory per SM', say: (spec) => bytes(spec.shared_memory_bytes_per_sm), override: 'smem_kib' },
  { field: 'mufu_per_clk_per_sm', words: 'Exponentials per clock and SM', say: (spec) => count(spec.mufu_per_clk_per_sm), override: 'mufu' },
  { field: 'link_bytes_per_s', words: 'Link between GPUs, one direction', say: (spec) => (spec.link_bytes_per_s === 0 ? 'PCIe only' : rate(spec.link_bytes_per_s, 'B')), override: 'link_gbps' },
  { field: 'link_gpu_count', words: 'GPUs joined by it', say: (spec) => count(spec.link_gpu_count), override: 'link_gpus' },
  { field: 'pcie_bytes_per_s', words: 'PCIe, one direction', say: (spec) => rate(spec.pcie_bytes_per_s, 'B'), override: 'pcie_gbps' },
  { field: 'tdp_w', words: 'Power', say: (spec) => `${count(spec.tdp_w)} W`, override: 'tdp_w' },
  { field: 'year', words: 'Shipped since', say: (spec) => String(spec.year), override: '' },
]
