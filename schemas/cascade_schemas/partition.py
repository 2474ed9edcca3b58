"""Which partition of work.<simulator> a batch goes to. No answer depends on it, only who computes it."""

from __future__ import annotations

from zlib import crc32

WORK_PARTITION_COUNT = 64


def work_partition(config_id: str, task_id: str, replicas: int) -> int:
    """A config with `replicas` N is spread over N neighbouring partitions, so that N workers can share it."""
    assert replicas >= 1
    return (crc32(config_id.encode()) + crc32(task_id.encode()) % replicas) % WORK_PARTITION_COUNT


TASKS_PER_BATCH = {"analytic": 1024, "roofline": 1024}
"""Simulators that take many tasks in one call. All others are slow and take batches of one, so that a worker is never
committed to more than it is working on."""
