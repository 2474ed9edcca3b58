"""The build's error map, docs/accuracy.md, as tables that a screen can sort and filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).parents[3] / "docs" / "accuracy.md"


class NoErrorMap(LookupError):
    """None is installed here."""


def accuracy_map(path: Path = SHIPPED) -> dict[str, Any]:
    """What it is about, and per section its tables, each with the text before it, and what text comes after them;
    numbers as numbers, and the places of those that miss their aim as [row, column]. Raises NoErrorMap.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise NoErrorMap("this installation has no error map; `make accuracy` writes it") from error
    about: list[str] = []
    sections: list[dict[str, Any]] = []
    table: dict[str, Any] | None = None
    for line in lines:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if table is None:
                table = {"text": sections[-1]["text"], "columns": cells, "rows": [], "missed": []}
                sections[-1]["tables"].append(table)
                sections[-1]["text"] = ""
            elif not all(set(cell) <= set("-:") for cell in cells):
                table["missed"] += [[len(table["rows"]), at] for at, cell in enumerate(cells) if cell.startswith("**")]
                table["rows"].append([_value(cell) for cell in cells])
            continue
        table = None
        if line.startswith("## "):
            sections.append({"title": line.removeprefix("## "), "text": "", "tables": []})
        elif line and not line.startswith("# "):
            text = line.replace("*", "").replace("`", "")
            if sections:
                sections[-1]["text"] = f"{sections[-1]['text']} {text}".strip()
            else:
                about.append(text)
    return {"about": " ".join(about), "sections": sections}


def _value(cell: str) -> str | float | None:
    cell = cell.removeprefix("**").removesuffix("**")
    if cell in {"", "-", "–"}:
        return None
    try:
        return float(cell)
    except ValueError:
        return cell
