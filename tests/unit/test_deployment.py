"""Deployment files by their tools' own rules: nothing here needs Docker or a Kubernetes."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install -r infra/requirements/test.txt")

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
OLDEST, NEWEST = "1.28", "1.33"


def items():
    return yaml.safe_load((ROOT / "infra" / "kubernetes" / "cascade.yaml").read_text())["items"]


@pytest.mark.parametrize("item", items(), ids=lambda item: f"{item['kind']}-{item['metadata']['name']}")
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_manifests_are_what_kubernetes_accepts(item, version):
    kubernetes_validate.validate(item, version, strict=True)


def test_pods_are_nobody_and_are_looked_after():
    sets = [item for item in items() if item["kind"] == "StatefulSet"]
    assert {one["metadata"]["name"] for one in sets} == {"ingest", "simworker", "aggregator", "gateway"}
    for one in sets:
        spec = one["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/health"
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
        assert container["resources"]["limits"]["memory"]
    (aggregator,) = [one for one in sets if one["metadata"]["name"] == "aggregator"]
    assert aggregator["spec"]["replicas"] == 1  # its store is one file with one owner


def test_compose_is_what_compose_accepts():
    done = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / "infra" / "compose.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_service_of_compose_runs_a_program_that_is_there():
    services = yaml.safe_load((ROOT / "infra" / "compose.yaml").read_text())["services"]
    assert set(services) == {"kafka", "ingest", "simworker", "aggregator", "gateway"}
    for name in ("ingest", "simworker", "aggregator"):
        assert f"services.{name}.app" in " ".join(services[name]["command"])
        assert (ROOT / "services" / name / "app.py").is_file()


def test_the_dockerfile_has_nothing_to_mend():
    done = subprocess.run(
        [BIN / "hadolint", ROOT / "infra" / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_copies_what_is_there_and_ends_as_nobody():
    lines = (ROOT / "infra" / "Dockerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
    assert [line for line in lines if line.startswith("USER ")][-1] == "USER 10001"
