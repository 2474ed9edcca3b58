import { describe, expect, it } from 'vitest'
import type { ResultColumns } from '../../canvas/results'
import { countFor, errorOf, familyRows, shares, shortKernel, taskRows, type LaidOutTask } from './kernelRows'

const tasks: readonly LaidOutTask[] = ['gemm', 'gemm', 'norm'].map((family, index) => ({
  index,
  task_id: `t${index}`,
  name: `${family}_kernel`,
  op: 'aten::mm',
  family,
  launch_count: [10, 5, 100][index] ?? 0,
  measured_ns: [1000, null, 50][index] ?? null,
}))

const columns = (duration: readonly number[], bound: readonly string[]): ResultColumns => {
  const numbers = Float64Array.from(duration)
  return {
    task: Uint32Array.from(duration.keys()),
    duration: numbers,
    p10: numbers.map((one) => one * 0.9),
    p90: numbers.map((one) => one * 1.1),
    forward: numbers,
    roofline: numbers,
    measured: numbers,
    correction: numbers,
    family: tasks.map(({ family }) => family),
    bound,
    tier: ['A', 'A', 'A'],
    reason: ['', '', ''],
    isFailed: Uint8Array.from(duration, (one) => Number(Number.isNaN(one))),
  }
}
const results = [columns([900, 2000, 60], ['dram', 'tensor', 'launch']), columns([450, Number.NaN, 30], ['l2', '', 'launch'])]
const rows = taskRows(tasks, results, 0, { task: [0, 0, 2], bin: [0, 47, 3], count: [4, 6, 100] }, { flop: [1, 2, 3], movedBytes: [4, 5, 6] })

describe('rows of kernels', () => {
  it('say a time for every config, and none where none is known', () => {
    expect(rows.map((row) => row.cells.map((cell) => cell.total))).toEqual([
      [9000, 4500],
      [10_000, Number.NaN],
      [6000, 3000],
    ])
    expect(rows[1]?.cells[1]?.isFailed).toBe(true)
  })

  it('draw a trend of the base config', () => {
    expect(rows[0]?.trend[47]).toBe(6 * 900)
    expect(rows[1]?.trend).toEqual([])
  })

  it('reach all of the time, the longest first', () => {
    const found = shares(rows, 0)
    expect([...found.keys()]).toEqual(['t1', 't0', 't2'])
    expect(found.get('t2')?.cumulative).toBeCloseTo(1)
    expect([...found.values()].reduce((sum, { share }) => sum + share, 0)).toBeCloseTo(1)
    expect(countFor(rows, 0, 0.7)).toBe(2)
    expect(countFor(rows, 0, 1)).toBe(3)
  })

  it('compare the forward prediction with what was measured', () => {
    expect(rows.map((row) => errorOf(row, 0))).toEqual([-0.1, Number.NaN, 0.2])
    expect(rows.map((row) => errorOf(row, -1))).toEqual([Number.NaN, Number.NaN, Number.NaN])
  })

  it('add up to their families', () => {
    const families = familyRows(rows)
    expect(families.map((row) => [row.key, row.cells[0]?.total])).toEqual([
      ['gemm', 19_000],
      ['norm', 6000],
    ])
    expect(families[0]?.cells[0]?.bound).toBe('tensor')
    expect(families[0]?.cells[1]?.isFailed).toBe(true)
    expect(families[0]?.cells[1]?.total).toBe(4500)
  })

  it('have a short name', () => {
    expect(shortKernel('void vllm::rms_norm_kernel<c10::BFloat16>(int)')).toBe('rms_norm_kernel<c10::BFloat16>')
    expect(shortKernel('ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn')).toBe('ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn')
  })
})
