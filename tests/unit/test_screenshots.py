"""Pictures of the page: small, in both themes, and those that the README shows are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "screenshots"
BYTES_LIMIT = 200_000


def test_every_picture_is_small_and_there_in_both_themes():
    pictures = sorted(FOLDER.glob("*.png"))
    assert len(pictures) >= 30
    assert {path.name: path.stat().st_size for path in pictures if path.stat().st_size > BYTES_LIMIT} == {}
    screens = {
        theme: {path.stem.removesuffix(f"-{theme}") for path in FOLDER.glob(f"*-{theme}.png")}
        for theme in ("dark", "light")
    }
    assert screens["dark"] == screens["light"]


def test_the_readme_shows_pictures_that_exist():
    shown = re.findall(r"\((docs/[^)]+\.(?:png|svg))\)", (ROOT / "README.md").read_text())
    assert len(shown) >= 7
    assert [path for path in shown if not (ROOT / path).exists()] == []
