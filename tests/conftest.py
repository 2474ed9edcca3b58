"""What tests of every kind share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real recordings and measurements; they may be read by tests but are not part of the repository."""
    folder = Path(os.environ.get("CASCADE_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"{folder}: the real recordings are not here; set CASCADE_SHARED to their folder")
    return folder


@pytest.fixture(scope="session")
def samples() -> Path:
    """The recordings that the package brings along."""
    return ROOT / "services" / "samples"
