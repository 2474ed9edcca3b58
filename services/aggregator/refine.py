"""Which kernels of a config are worth a slower simulator, and whose result of a kernel stands. Arrays in, arrays out.

Worth is share of uncertainty: the variance of all steps as `compose` adds it up, of which a kernel holds the part that
would go if its own interval closed first. Of two results the one with the tighter relative interval stands, after the
source correction; on a tie the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cascade_schemas.events import EscalatedTask, LeftTasks, Refine, RefinementChosen
from cascade_schemas.gpu import GpuSpec
from cascade_schemas.task import KernelTask
from numpy.typing import NDArray

from services.aggregator import compose
from services.kernels.correction import relation
from services.kernels.work import Family

FAILED_SIGMA = 1.0  # of a kernel without a time: nothing narrower is known of it

NO_SASS_TRACE = "no_sass_trace"
OTHER_CLASS = "other_class"

_LEFT_SAYS = {
    NO_SASS_TRACE: "have no SASS trace",
    OTHER_CLASS: "run other code there than was traced",
}

TAKEN_TIGHTER = "taken:tighter_interval"
TAKEN_ALONE = "taken:first_failed"
KEPT_TIGHTER = "kept:tighter_interval"
KEPT_FAILED = "kept:refinement_failed"
KEPT_UNCORRECTED = "kept:source_not_simulated"
KEPT_OTHER_CLASS = "kept:other_class"

# Kernels that every class programs alike: whatever may use tensor cores is other code on another class of them.
_PORTABLE = frozenset(
    {
        Family.KV_WRITE,
        Family.ROPE,
        Family.NORM,
        Family.ACTIVATION,
        Family.QUANTISE,
        Family.MOE_ROUTING,
        Family.ELEMENTWISE,
        Family.REDUCTION,
        Family.SOFTMAX,
        Family.SAMPLING,
        Family.EMBEDDING,
        Family.COPY,
        Family.ATTENTION_COMBINE,
        Family.SPLITK_REDUCE,
    }
)


def variance_shares(
    layout: compose.StepLayout,
    launch_count: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    sigma: NDArray[np.float64],
    family: NDArray[np.object_],
) -> NDArray[np.int64]:
    """Per task its part of the variance of all steps, parts per million; shape (tasks,).

    duration_ns: failures filled in or -1. Within a family errors add up, so a kernel holds its spread × the family's.
    A trace without steps is taken as one.
    """
    counts = layout.counts if len(layout.row_step) else launch_count[None, :].astype(np.float64)
    spread = np.rint(np.where(duration_ns > 0, duration_ns, 0) * sigma)
    held = np.zeros(len(spread))
    for name in sorted(set(family)):
        members = family == name
        of_rows = counts[:, members] * spread[members]
        held[members] = (of_rows * of_rows.sum(axis=1, keepdims=True)).sum(axis=0)
    whole = held.sum()
    shares: NDArray[np.int64] = np.rint(held * (1e6 / whole)).astype(np.int64) if whole else held.astype(np.int64)
    return shares


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tasks of a trace on one config; arrays of shape (tasks,)."""

    tasks: Sequence[KernelTask]
    share_ppm: NDArray[np.int64]
    obstacle: Sequence[str]  # why the refining simulator cannot do it; "": it can
    is_failed: NDArray[np.bool_]  # without a time so far: nothing is less certain


def obstacles(
    tasks: Sequence[KernelTask],
    family: NDArray[np.object_],
    measured_ns: NDArray[np.int64],
    traced_on: GpuSpec | None,
    gpu: GpuSpec,
) -> list[str]:
    """Per task why its SASS trace says nothing of this GPU; "" where it does.

    Measured times are corrected by the ratio of two simulations (never across classes), and code for one class of
    tensor cores is not what another class would run.
    """
    is_other = traced_on is not None and relation(traced_on, gpu) == "other_class"
    found = []
    for task, name, measured in zip(tasks, family, measured_ns.tolist(), strict=True):
        if not task.sass:
            found.append(NO_SASS_TRACE)
        elif is_other and (measured > 0 or name not in _PORTABLE):
            found.append(OTHER_CLASS)
        else:
            found.append("")
    return found


def chosen(
    run_id: str, config_id: str, refine: Refine, of: Candidates, *, also: frozenset[str] = frozenset()
) -> RefinementChosen:
    """Failed tasks and those with the largest shares, until they hold `refine.share_ppm` of what all possible ones do.

    `also`: tasks that other configs need here, whatever their share.
    """
    order = sorted(
        range(len(of.tasks)),
        key=lambda place: (not of.is_failed[place], -int(of.share_ppm[place]), of.tasks[place].task_id),
    )
    possible = [place for place in order if not of.obstacle[place] and (of.share_ppm[place] > 0 or of.is_failed[place])]
    reach = sum(int(of.share_ppm[place]) for place in possible)
    picked: list[int] = []
    held = 0
    for place in possible:
        is_enough = held * 1_000_000 >= reach * refine.share_ppm and not of.is_failed[place]
        if len(picked) == refine.task_limit or is_enough:
            break
        picked.append(place)
        held += int(of.share_ppm[place])
    needed = [place for place in order if of.tasks[place].task_id in also and not of.obstacle[place]]
    tasks = tuple(
        EscalatedTask(task_id=of.tasks[place].task_id, share_ppm=int(of.share_ppm[place]))
        for place in (*picked, *(place for place in needed if place not in picked))
    )
    left = _left(of)
    return RefinementChosen(
        run_id=run_id,
        config_id=config_id,
        simulator=refine.simulator,
        tasks=tasks,
        left=left,
        sentence=_sentence(refine.simulator, len(picked), len(tasks) - len(picked), held, left, len(of.tasks)),
    )


def nothing_chosen(run_id: str, config_id: str, refine: Refine, why: str) -> RefinementChosen:
    return RefinementChosen(
        run_id=run_id,
        config_id=config_id,
        simulator=refine.simulator,
        tasks=(),
        sentence=f"No kernel is refined: {why}.",
    )


def _left(of: Candidates) -> tuple[LeftTasks, ...]:
    found = []
    for reason in sorted(set(of.obstacle) - {""}):
        places = [place for place, why in enumerate(of.obstacle) if why == reason]
        share_ppm = min(1_000_000, sum(int(of.share_ppm[place]) for place in places))
        found.append(LeftTasks(reason=reason, task_count=len(places), share_ppm=share_ppm))
    return tuple(found)


def _sentence(simulator: str, picked: int, needed: int, held: int, left: Sequence[LeftTasks], count: int) -> str:
    lacking = "; ".join(
        f"{one.task_count} {_LEFT_SAYS[one.reason]} ({one.share_ppm / 1e4:.0f} % of the variance)" for one in left
    )
    if not picked and not needed:
        return f"No kernel is refined: of {count} {lacking}." if lacking else "No kernel is refined: none is uncertain."
    parts = []
    if picked:
        parts.append(
            f"{picked} of {count} kernels go to {simulator}: they hold {held / 1e4:.0f} % of the variance of the steps"
        )
    if needed:
        parts.append(f"{needed} of {count} kernels go to {simulator} because other GPUs are corrected by them")
    if lacking:
        parts.append(lacking)
    return "; ".join(parts) + "."


@dataclass(frozen=True, slots=True)
class Forward:
    """One simulator's results of a config's tasks, before and after the source correction; shape (tasks,)."""

    forward_ns: NDArray[np.int64]  # -1: failed, or not asked for
    sigma: NDArray[np.float64]  # after the correction
    reason: NDArray[np.object_]


def verdicts(
    first: Forward,
    refined: Forward,
    asked: NDArray[np.bool_],
    needs_source: NDArray[np.bool_],
    family: NDArray[np.object_],
) -> list[str]:
    """Per task whose result stands, and why; "" where only one was asked for.

    needs_source: a measured time exists and nothing was simulated on the GPU it was measured on: then the refined time
    would be cycles of another chip, corrected by nothing.
    """
    found = []
    for place in range(len(asked)):
        if not asked[place]:
            found.append("")
        elif refined.forward_ns[place] < 0:
            found.append(KEPT_FAILED)
        elif needs_source[place]:
            found.append(KEPT_UNCORRECTED)
        elif family[place] not in _PORTABLE and "code_of_sm_" in str(refined.reason[place]):
            found.append(KEPT_OTHER_CLASS)
        elif first.forward_ns[place] < 0:
            found.append(TAKEN_ALONE)
        elif refined.sigma[place] < first.sigma[place]:
            found.append(TAKEN_TIGHTER)
        else:
            found.append(KEPT_TIGHTER)
    return found


def is_taken(verdict: str) -> bool:
    return verdict.startswith("taken:")
