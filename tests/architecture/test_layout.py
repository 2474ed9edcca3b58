"""House rules as tests: who may import whom, where the outside world is touched, how files are called."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for folder in ("schemas/cascade_schemas", "profiler_sdk/cascade_profiler", "services")
    for path in (ROOT / folder).rglob("*.py")
    if "samples" not in path.parts  # the recording script ran in vLLM's environment, not in ours
)
SERVICES = ("ingest", "simworker", "aggregator", "gateway")

# Outside libraries sit behind few named files (DESIGN 3).
SEAMS = {
    "duckdb": {"services/aggregator/store.py", "services/aggregator/queries.py", "services/aggregator/jail.py"},
    "sqlite3": {
        "services/runtime/eventlog.py",
        "services/ingest/importers/nsys.py",
        "profiler_sdk/cascade_profiler/nsys.py",
    },
    "subprocess": {
        "services/aggregator/jail.py",
        "services/simworker/simulators/accelsim/process.py",
        "services/runtime/executor.py",
        "profiler_sdk/cascade_profiler/cli.py",
    },
    "aiokafka": {
        "services/runtime/kafka.py",
        "services/runtime/replica.py",
        "services/aggregator/app.py",
        "services/aggregator/consumer.py",
        "profiler_sdk/cascade_profiler/destinations.py",
    },
    "faust": {"services/aggregator/app.py", "services/aggregator/consumer.py"},
    "vllm": {"profiler_sdk/cascade_profiler/vllm.py", "services/simworker/calibration/sweep.py"},
    "rich": {"services/cli.py", "services/start.py", "services/tables.py"},
    "scipy": {
        "services/simworker/calibration/followable.py",
        "services/simworker/calibration/fit.py",
        "services/simworker/calibration/residual.py",
        "services/simworker/calibration/measure.py",
    },
    "torch": {"services/simworker/calibration/sweep.py", "profiler_sdk/cascade_profiler/vllm.py"},
    "lightgbm": {"services/simworker/calibration/residual.py", "services/simworker/calibration/spread.py"},
    "pebble": {"services/runtime/executor.py"},
    "numba": {"services/simworker/simulators/sass/jit.py"},
}
# Only the composition of one process knows several services: the pipeline, its what-if and its front.
COMPOSITION = {
    "services/runtime/embedded.py",
    "services/runtime/whatif.py",
    "services/runtime/local.py",
    "services/runtime/served.py",
    "services/runtime/replica.py",
    "services/runtime/screens.py",
    "services/runtime/receipt.py",
    "services/runtime/simulations.py",
    "services/runtime/sweep.py",
    "services/runtime/curves.py",
    "services/cli.py",
    "services/start.py",
}
# Shells look at the clock or at the environment; what decides does not.
SHELLS = {
    "services/__init__.py",
    "services/cli.py",
    "services/start.py",
    "services/runtime/embedded.py",
    "services/runtime/eventlog.py",
    "services/runtime/observe.py",
    "services/runtime/kafka.py",
    "services/runtime/artifacts.py",
    "services/runtime/local.py",
    "services/runtime/served.py",
    "services/runtime/remote.py",
    "services/simworker/calibration/accuracy.py",  # these two date what they write
    "services/simworker/calibration/residual.py",
}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{name_of(path)}: imports are absolute"
            yield node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def is_shell(path):
    name = name_of(path)
    return (
        name in SHELLS
        or path.name in {"app.py", "__main__.py", "fit.py", "alpha.py", "generate.py", "jail.py"}
        or (name.startswith(("services/gateway/", "profiler_sdk/")))
    )


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_outside_libraries_stay_behind_their_files(path):
    for module in imports_of(path):
        allowed = SEAMS.get(module.split(".")[0])
        assert allowed is None or name_of(path) in allowed, f"{name_of(path)} imports {module}; only {allowed} may"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_services_never_import_each_other(path):
    parts = path.relative_to(ROOT).parts
    own = parts[1] if parts[0] == "services" and len(parts) > 2 else None
    if name_of(path) in COMPOSITION:
        return
    for module in imports_of(path):
        words = module.split(".")
        if words[0] == "services" and len(words) > 1 and words[1] in SERVICES:
            assert own == words[1], f"{name_of(path)} imports {module}: services speak by events"


def test_schemas_need_only_pydantic_and_pyarrow():
    allowed = {"pydantic", "pydantic_core", "pyarrow", "cascade_schemas"} | set(sys.stdlib_module_names)
    for path in SOURCES:
        if name_of(path).startswith("schemas/"):
            foreign = {module.split(".")[0] for module in imports_of(path)} - allowed
            assert not foreign, f"{name_of(path)} imports {foreign}"


def test_the_profiler_needs_only_the_schemas():
    """It is installed beside vLLM, whose pins it must not disturb; the rest is found, never required."""
    allowed = {"cascade_profiler", "cascade_schemas", "pyarrow"} | set(sys.stdlib_module_names)
    extras = {"aiokafka": "destinations.py", "vllm": "vllm.py"}
    for path in SOURCES:
        if name_of(path).startswith("profiler_sdk/"):
            for module in imports_of(path):
                top = module.split(".")[0]
                assert top in allowed or extras.get(top) == path.name, f"{name_of(path)} imports {module}"


def test_kernels_and_schemas_are_leaves():
    for path in SOURCES:
        if name_of(path).startswith("services/kernels/"):
            for module in imports_of(path):
                assert not module.startswith("services.") or module.startswith("services.kernels"), name_of(path)


@pytest.mark.parametrize("path", [path for path in SOURCES if not is_shell(path)], ids=name_of)
def test_domain_code_reads_no_clock_environment_or_chance(path):
    for module in imports_of(path):
        assert module.split(".")[0] not in {"time", "random", "secrets", "uuid"}, f"{name_of(path)} imports {module}"
        assert module not in {"os.environ", "datetime.now"}, name_of(path)
    text = path.read_text()
    assert not re.search(r"os\.environ|os\.getenv|datetime\.now|time\.time", text), name_of(path)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_are_called_by_what_they_hold(path):
    assert path.stem not in {"utils", "util", "common", "helpers", "helper", "manager", "misc"}


def test_every_package_folder_is_a_package():
    for path in SOURCES:
        assert (path.parent / "__init__.py").exists(), f"{name_of(path.parent)} has no __init__.py"


def test_requirements_are_pinned_with_hashes_and_name_no_host():
    for path in (ROOT / "infra" / "requirements").glob("*.txt"):
        text = path.read_text()
        assert "://" not in text, path.name
        packages = re.findall(r"^[a-z0-9][^\s\\]*", text, re.MULTILINE)
        assert packages, path.name
        assert all("==" in package for package in packages), path.name
        assert text.count("--hash=sha256:") >= len(packages), path.name
