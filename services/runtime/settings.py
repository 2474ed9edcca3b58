"""Settings, read once from the environment in `main` and passed down; nothing below reads the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class BadSetting(ValueError):
    """An environment variable has a value that cannot be used; the message names both."""


@dataclass(frozen=True, slots=True)
class AccelSimSettings:
    """The user's own Accel-Sim, and what it simulates GPUs by."""

    binary: Path
    configs: Path  # per GPU id a folder with gpgpusim.config and trace.config
    environ: Mapping[str, str] = field(repr=False)  # of its processes: libraries are found through it


@dataclass(frozen=True, slots=True)
class Settings:
    """Where state lives and how much of the machine may be used."""

    home: Path
    thread_count: int
    upload_bytes_limit: int
    token: str = ""  # of the server; "": a new one is made
    accelsim: Path | None = None  # the user's own accel-sim.out
    accelsim_runs: AccelSimSettings | None = None  # where runs may use it too
    artifacts_uri: str = ""  # of a bucket that all machines share; "": the home's folder alone

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        default_home = Path(environ.get("HOME", ".")) / ".cascade"
        return cls(
            home=Path(environ.get("CASCADE_HOME") or default_home).expanduser().absolute(),
            thread_count=_count(environ, "CASCADE_THREADS", 2),
            upload_bytes_limit=_count(environ, "CASCADE_UPLOAD_MIB", 4096) << 20,
            token=_token(environ),
            artifacts_uri=_bucket(environ),
            accelsim=Path(environ["CASCADE_ACCELSIM"]).expanduser() if environ.get("CASCADE_ACCELSIM") else None,
            accelsim_runs=_accelsim_runs(environ),
        )


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise BadSetting(f"{name}={text!r}: must be a whole number from 1 to 1000000")
    return int(text)


def _accelsim_runs(environ: Mapping[str, str]) -> AccelSimSettings | None:
    binary, configs = environ.get("CASCADE_ACCELSIM"), environ.get("CASCADE_ACCELSIM_CONFIGS")
    if not configs:
        return None
    folder = Path(configs).expanduser().absolute()
    if not binary:
        raise BadSetting(f"CASCADE_ACCELSIM_CONFIGS={configs!r}: goes with CASCADE_ACCELSIM, the path of accel-sim.out")
    if not folder.is_dir():
        raise BadSetting(f"CASCADE_ACCELSIM_CONFIGS={configs!r}: is no folder; it holds one of configs for each GPU id")
    return AccelSimSettings(Path(binary).expanduser().absolute(), folder, environ)


def _bucket(environ: Mapping[str, str]) -> str:
    uri = environ.get("CASCADE_ARTIFACTS", "")
    if uri and not re.match(r"(s3|gs)://[\w.-]+", uri):
        raise BadSetting(f"CASCADE_ARTIFACTS={uri!r}: must be s3://bucket/prefix or gs://bucket/prefix")
    return uri


def _token(environ: Mapping[str, str]) -> str:
    token = environ.get("CASCADE_TOKEN", "")
    # It stands in an address and in a header, so only characters that are themselves in both.
    if token and not re.fullmatch(r"[A-Za-z0-9_-]{16,256}", token):
        raise BadSetting("CASCADE_TOKEN: must be 16 to 256 letters, digits, '-' or '_' (its value is not shown)")
    return token
