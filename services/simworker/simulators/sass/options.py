"""gpgpusim.config and trace.config as Accel-Sim reads them: `-option value`, quotes over lines, the last one counts."""

from __future__ import annotations

import re
from pathlib import Path

OPTION_FILES = ("gpgpusim.config", "trace.config")


class BadConfig(ValueError):
    """Option files that describe no machine; the message names the file, the option and the value."""


def read_options(folder: Path) -> dict[str, str]:
    """All options of a folder's two files by name, without the dash."""
    options: dict[str, str] = {}
    for name in OPTION_FILES:
        path = folder / name
        if not path.is_file():
            raise BadConfig(f"{folder}: has no {name}; a config is a folder with {' and '.join(OPTION_FILES)}")
        options |= parse_options(path.read_text(encoding="utf-8", errors="replace"))
    return options


def parse_options(text: str) -> dict[str, str]:
    without_comments = re.sub(r"#[^\n]*", "", text)
    words = re.findall(r'"[^"]*"|\S+', without_comments)
    options: dict[str, str] = {}
    name = ""
    for word in words:
        if re.match(r"-[A-Za-z]", word):
            name = word[1:]
            options[name] = ""
        elif name and not options[name]:
            options[name] = re.sub(r"\s+", "", word.strip('"'))
    return options
