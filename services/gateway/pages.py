"""The built page: files of one folder and nothing beside it; every other address is the page's own affair."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response

_IMMUTABLE = "public, max-age=31536000, immutable"  # names under assets/ change with their content


def page(folder: Path, path: str) -> Response:
    """path: of the address, without its first slash."""
    index = folder / "index.html"
    if not index.is_file():
        return HTMLResponse(_NOT_BUILT, 200 if path == "" else 404)
    found = file_in(folder, path)
    if found is not None:
        caching = _IMMUTABLE if found.parent.name == "assets" else "no-cache"
        return FileResponse(found, headers={"cache-control": caching})
    if "." in path.rpartition("/")[2]:
        return PlainTextResponse(f"no file {path[:200]}", 404)
    return FileResponse(index, headers={"cache-control": "no-cache"})


def file_in(folder: Path, path: str) -> Path | None:
    """The file at a path below the folder; None for anything else, links that leave it included."""
    if "\0" in path or "\\" in path:
        return None
    root = folder.resolve()
    try:
        found = (root / path.lstrip("/")).resolve()
        return found if found.is_relative_to(root) and found.is_file() else None
    except (OSError, ValueError):  # a name longer than the file system takes
        return None


_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">
<title>Cascade</title>
<h1>The page is not built yet</h1>
<p>Build it with <code>make web</code> and reload. REST under <code>/api</code> and the commands work without it.</p>
"""
