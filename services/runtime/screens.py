"""What the page's screens ask beside what every command asks: answered from the store and the log, without an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from cascade_schemas.gpu import GpuSpec

from services.aggregator import compare as comparison
from services.aggregator import lanes
from services.aggregator.lanes import LaunchRows
from services.aggregator.state_hash import state_hash
from services.kernels.work import WorkTable
from services.runtime.curves import Axis
from services.runtime.embedded import Embedded, fold
from services.runtime.engine import Report
from services.runtime.eventlog import EventLog
from services.runtime.local import refusing
from services.runtime.loglines import LogLines
from services.runtime.nearness import known_errors
from services.runtime.receipt import receipt
from services.runtime.simulations import simulations
from services.simworker.calibration.accuracy_map import accuracy_map
from services.simworker.calibration.measured import constants_of
from services.simworker.simulators.analytic.simulator import AnalyticSimulator
from services.simworker.simulators.quantities import quantities

WORK = pa.schema(
    [
        pa.field("task", pa.uint32()),
        *(pa.field(name, pa.float64()) for name in ("flop", "moved_bytes", "link_bytes")),
        pa.field("math", pa.dictionary(pa.int32(), pa.string())),
    ]
)


class Screens:
    """All methods may be called from any thread. trace_known, run_known: raise Refused where nothing is known."""

    def __init__(
        self,
        embedded: Embedded,
        reader: EventLog,
        *,
        trace_known: Callable[[str], object],
        run_known: Callable[[str], object],
    ) -> None:
        self._embedded = embedded
        self._store = embedded.store
        self._analytic = AnalyticSimulator(1, constants_of(embedded.settings.home))
        self._reader = reader
        self._lines = LogLines(reader)
        self._trace_known = trace_known
        self._run_known = run_known

    # --- timeline ---------------------------------------------------------------------------------------------

    @refusing
    def layout(self, trace_id: str) -> Report:
        self._trace_known(trace_id)
        return lanes.layout(self._store, trace_id)

    @refusing
    def launches(self, trace_id: str, first: int, count: int) -> LaunchRows:
        self._trace_known(trace_id)
        return lanes.launches(self._store, trace_id, first, count)

    @refusing
    def durations(self, run_id: str, config_id: str) -> pa.Table:
        self._run_known(run_id)
        return lanes.durations(self._store, run_id, config_id)

    @refusing
    def profile(self, trace_id: str) -> pa.Table:
        self._trace_known(trace_id)
        return lanes.profile(self._store, trace_id)

    @refusing
    def histogram(self, trace_id: str, task_id: str) -> Report:
        self._trace_known(trace_id)
        return lanes.histogram(self._store, trace_id, task_id)

    @refusing
    def work(self, trace_id: str) -> pa.Table:
        """Per task what one launch computes and moves."""
        self._trace_known(trace_id)
        works = lanes.task_works(self._store, trace_id)
        if not works:
            return WORK.empty_table()
        amount = quantities(WorkTable.of(works))
        columns = [
            pa.array(np.arange(len(works)), pa.uint32()),
            *(pa.array(column) for column in (amount.flop, amount.read_bytes + amount.write_bytes, amount.link_bytes)),
            pa.array([str(work.math) for work in works]).dictionary_encode(),
        ]
        return pa.table(columns, schema=WORK)

    # --- what if ------------------------------------------------------------------------------------------

    @refusing
    def what_if_totals(self, trace_id: str, config: str) -> Report:
        """What a slider waits for: everything but the single steps."""
        return self._embedded.what_if(trace_id, config, has_steps=False)

    @refusing
    def what_if_sweep(self, trace_id: str, config: str) -> Report:
        return self._embedded.what_if_sweep(trace_id, config)

    @refusing
    def curves(self, run_id: str, axis: Axis) -> Report:
        self._run_known(run_id)
        return self._embedded.curves(run_id, axis)

    # --- why ----------------------------------------------------------------------------------------------

    @refusing
    def explain(self, run_id: str, config_id: str, task_id: str) -> Report:
        """The receipt of one number: see receipt.py."""
        self._run_known(run_id)
        return receipt(self._store, self._analytic, run_id, config_id, task_id)

    @refusing
    def known_errors(self, run_id: str) -> Report:
        """What measurements say of GPUs like the run's: see nearness.py."""
        self._run_known(run_id)
        specs = self._store.query(
            "select config_id, spec from run_configs where run_id = ? and is_requested order by ordinal", [run_id]
        )
        families = self._store.query(
            """select family, sum(coalesce(duration_ns, forward_ns) * coalesce(launch_count, 1))::double as time_ns
            from kernels where run_id = ? group by family""",
            [run_id],
        )
        gpus = {row["config_id"]: GpuSpec.model_validate_json(row["spec"], extra="ignore") for row in specs}
        times = {row["family"]: row["time_ns"] or 0.0 for row in families}
        return {"configs": known_errors(gpus, times, accuracy_map())}

    @refusing
    def simulations(self, run_id: str, config_id: str, task_id: str) -> Report:
        self._run_known(run_id)
        return simulations(self._store, run_id, config_id, task_id)

    @refusing
    def compare(self, asked: Sequence[str], base: str | None) -> Report:
        return comparison.compare(self._store, asked, base)

    # --- log --------------------------------------------------------------------------------------------------

    @refusing
    def log_lines(
        self, run_id: str, config_id: str, first: int, count: int, said: Sequence[int] | None = None
    ) -> Report:
        """Lines a config's simulator has said, by number; `total` counts all so far, or those of the records `said`."""
        self._run_known(run_id)
        return self._lines.page(run_id, config_id, first, count, said)

    @refusing
    def log_search(
        self, run_id: str, config_id: str, text: str, first: int, limit: int, said: Sequence[int] | None = None
    ) -> Report:
        self._run_known(run_id)
        return self._lines.search(run_id, config_id, text, first, limit, said)

    @refusing
    def state_hash(self, run_id: str, said: Sequence[int]) -> str:
        """Of a run as far as these records of its log go: folded into a store of its own."""
        self._run_known(run_id)
        folded = fold(self._reader.read_positions(said))
        try:
            return state_hash(folded, run_id)
        finally:
            folded.close()

    # --- database and error map -------------------------------------------------------------------------------

    def sql_schema(self) -> Report:
        """The views with their columns, types and what they mean."""
        views = self._store.query(
            "select view_name as name, comment as about from duckdb_views() where not internal order by view_name"
        )
        columns = self._store.query(
            """select table_name, column_name as name, data_type as type, comment as about from duckdb_columns()
            where not internal order by table_name, column_index"""
        )
        return {
            "tables": [
                view
                | {
                    "columns": [
                        {name: column[name] for name in ("name", "type", "about")}
                        for column in columns
                        if column["table_name"] == view["name"]
                    ]
                }
                for view in views
            ]
        }

    def provenances(self) -> list[str]:
        """What any number of the database may rest on."""
        return [
            row["p"]
            for row in self._store.query("select distinct provenance as p from traces where p is not null order by p")
        ]

    @refusing
    def accuracy(self) -> Report:
        """The build's error map."""
        return accuracy_map()
