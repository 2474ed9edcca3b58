"""Identities. Each is text; what makes two of them equal stands beside it."""

from __future__ import annotations

import hashlib
from typing import NewType

TraceId = NewType("TraceId", str)  # digest of the trace's artifacts and import options: importing twice is one trace
RunId = NewType("RunId", str)  # made by whoever asks; unique
ConfigId = NewType("ConfigId", str)  # digest of a resolved GpuSpec
TaskId = NewType("TaskId", str)  # digest of a KernelTask
SignatureId = NewType("SignatureId", str)  # digest of a KernelSignature
ArtifactDigest = NewType("ArtifactDigest", str)  # SHA-256 of the content, 64 hex digits


def text_digest(*parts: str) -> str:
    """The first 16 hex digits of a SHA-256 over length-prefixed parts: ("ab", "c") and ("a", "bc") differ."""
    whole = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        whole.update(len(encoded).to_bytes(8, "big") + encoded)
    return whole.hexdigest()[:16]
