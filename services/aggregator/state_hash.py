"""The state hash of a run: equal where its answer is equal, whatever machine, mode or order of delivery."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from services.aggregator.store import Store

# Left out: run and trace ids, wall-clock times, worker, offset, whether a result came from the cache, log text.
_TABLES = {
    "simulated_kernels": ("run_id", "is_cached"),
    "refined_kernels": ("run_id", "is_cached"),
    "refinements": ("run_id", "event"),
    "predicted_kernels": ("run_id",),
    "predicted_steps": ("run_id",),
    "predicted_requests": ("run_id",),
    "accuracy": ("run_id",),
    "assumptions": ("run_id",),
}
_KEYS = {
    "simulated_kernels": "config_id, task_id",
    "refined_kernels": "config_id, task_id",
    "refinements": "config_id",
    "predicted_kernels": "config_id, task_id",
    "predicted_steps": "config_id, step",
    "predicted_requests": "config_id, request",
    "accuracy": "config_id",
    "assumptions": "config_id, assumption",
}
_ONLY_OF_REFINED_RUNS = ("refined_kernels", "refinements")


def state_hash(store: Store, run_id: str) -> str:
    """SHA-256 over canonical JSON lines of the run's rows in primary-key order: sorted keys, integers and strings only.

    Failures are rows of simulated_kernels without a duration. Nulls are left out of a line.
    """
    whole = hashlib.sha256()
    for table, left_out in _TABLES.items():
        sql = f"select * exclude ({', '.join(left_out)}) from {table} where run_id = ? order by {_KEYS[table]}"  # noqa: S608
        rows = store.query(sql, [run_id])
        if table in _ONLY_OF_REFINED_RUNS and not rows:
            continue  # the hash of a run that is not refined is what it was before runs could be
        whole.update(f"{table}\n".encode())
        for row in rows:
            whole.update(orjson.dumps(_plain(row), option=orjson.OPT_SORT_KEYS) + b"\n")
    return whole.hexdigest()


def _plain(row: dict[str, Any]) -> dict[str, int | str]:
    plain = {name: int(value) if isinstance(value, bool) else value for name, value in row.items() if value is not None}
    assert all(isinstance(value, int | str) for value in plain.values()), plain
    return plain
