"""A machine for the SASS simulator from a GPU's datasheet."""

from __future__ import annotations

import math

from cascade_schemas.gpu import GpuSpec

from services.simworker.simulators.sass.machine import LINE_BYTES, SECTOR_BYTES, Machine


def machine_of_gpu(gpu: GpuSpec) -> Machine:
    """A machine from a datasheet. What datasheets leave out is what Accel-Sim's A100 and H200 configs agree on."""
    tensor_flop_per_clk = gpu.bf16_flop_per_s / gpu.boost_hz / gpu.sm_count
    # HMMA.16816 is 16·8·16 multiply-adds, done by one of four sub-cores.
    tensor_initiation = max(1, round(2 * 16 * 8 * 16 * 4 / tensor_flop_per_clk))
    fp32_initiation = max(1, round(32 * 2 * 4 / (gpu.fp32_flop_per_s / gpu.boost_hz / gpu.sm_count)))
    fp64_per_clk = gpu.fp64_flop_per_s / gpu.boost_hz / gpu.sm_count
    fp64_initiation = max(1, min(128, round(32 * 2 * 4 / fp64_per_clk))) if fp64_per_clk else 128
    mufu_initiation = max(1, 128 // gpu.mufu_per_clk_per_sm)
    channels = max(1, round(gpu.dram_bytes_per_s / 48e9))  # as many as give 48 GB/s each, which HBM2e's do
    slices = 2
    ways = 16
    sets = 1 << max(4, round(math.log2(gpu.l2_bytes / (channels * slices * ways * LINE_BYTES))))
    core_clocks_per_32_bytes = SECTOR_BYTES * channels / gpu.dram_bytes_per_s * gpu.boost_hz
    carve_out = gpu.shared_memory_bytes_per_sm
    return Machine(
        sm_count=gpu.sm_count,
        schedulers=4,
        threads_per_sm=2048 if gpu.compute_capability in {(8, 0), (9, 0), (10, 0), (10, 3)} else 1536,
        ctas_per_sm=32,
        registers_per_sm=65536,
        shared_memory_bytes=carve_out,
        shared_memory_options_bytes=(0, 8 << 10, 16 << 10, 32 << 10, 64 << 10, carve_out),
        unified_l1_bytes=carve_out + (28 << 10),
        is_greedy=True,
        register_banks=32,
        collectors=8,
        latency=(4, 4, 8, 23, 4, 200, max(12, tensor_initiation), 4, 128),
        initiation=(2, fp32_initiation, fp64_initiation, mufu_initiation, 4, 4, tensor_initiation, 1, 32),
        absent=(),
        shared_latency=29,
        l1_latency=37,
        l1_banks=4,
        l1_sets=4,
        l1_ways=64,
        l1_mshrs=512,
        l1_miss_queue=16,
        skips_l1=False,
        flushes_l1=True,
        flushes_l2=False,
        l2_sets=sets,
        l2_ways=ways,
        l2_mshrs=192,
        l2_latency=223,
        slice_queue=576,
        l2_miss_queue=96,
        dram_credits=256,
        channels=channels,
        slices_per_channel=slices,
        partition_indexing=0,
        address_map="dramid@8;00000000.00000000.00000000.00000000.0000RRRR.RRRRRRRR.RBBBCCCC.BCCSSSSS",
        dram_latency=201,
        core_hz=float(gpu.boost_hz),
        icnt_hz=float(gpu.boost_hz),
        l2_hz=float(gpu.boost_hz),
        dram_hz=float(gpu.boost_hz),
        dram_atom_bytes=SECTOR_BYTES,
        dram_atom_clocks=core_clocks_per_32_bytes,
        dram_timing={"nbk": 16, "RCD": 20, "RP": 20, "CL": 20, "RC": 68},
    )
