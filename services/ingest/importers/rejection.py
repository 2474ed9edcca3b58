"""Why a file cannot be imported."""

from __future__ import annotations


class TraceRejected(ValueError):
    """A file Cascade cannot use: one sentence that names what is wrong and the way out."""
