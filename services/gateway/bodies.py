"""What callers may say: request bodies, upload fields and the control frames of /ws. Unknown fields are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cascade_schemas.model import ModelSpec, UnknownModel, known_models, load_model
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from services.runtime.engine import ImportOptions, Refused

ROWS_LIMIT = 100_000
TABLE_ROWS_LIMIT = 1_000_000
CREDITS_LIMIT = 64

_Id = Annotated[str, Field(min_length=1, max_length=200)]
_Count = Annotated[int, Field(ge=0, le=2**53)]


class Body(BaseModel):
    """Strict in form: an unknown field is a typing error that would otherwise be ignored in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RefineBody(Body):
    """Simulate the kernels that make most of the uncertainty again, once the first answer is out."""

    simulator: Annotated[str, Field(max_length=100)]
    share_ppm: Annotated[int, Field(ge=1, le=1_000_000)] = 900_000
    task_limit: Annotated[int, Field(ge=1, le=1024)] = 16


class RunBody(Body):
    trace_id: _Id
    gpus: Annotated[list[Annotated[str, Field(max_length=500)]], Field(min_length=1, max_length=1000)]
    simulator: Annotated[str, Field(max_length=100)] = "analytic"
    name: Annotated[str, Field(max_length=200)] = ""
    refine: RefineBody | None = None


class SqlBody(Body):
    sql: Annotated[str, Field(max_length=1 << 17)]
    limit: Annotated[int, Field(ge=1, le=ROWS_LIMIT)] = 1000


class SqlTableBody(Body):
    sql: Annotated[str, Field(max_length=1 << 17)]
    limit: Annotated[int, Field(ge=1, le=TABLE_ROWS_LIMIT)] = 100_000


class SqlExportBody(Body):
    sql: Annotated[str, Field(max_length=1 << 17)]
    format: Literal["csv", "parquet"]


class WhatIfBody(Body):
    trace: _Id
    config: Annotated[str, Field(min_length=1, max_length=500)]


class WhatIfAskedBody(WhatIfBody):
    steps: Annotated[bool, Field(description="false: the answer without its single steps")] = True


class SampleBody(Body):
    name: Annotated[str, Field(min_length=1, max_length=100)]


class ArtifactBody(Body):
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    name: Annotated[str, Field(min_length=1, max_length=200)]


class ArtifactsBody(Body):
    """Files that were stored one by one, to be imported together; the other fields are an upload's."""

    artifacts: Annotated[list[ArtifactBody], Field(min_length=1, max_length=100_000)]
    name: Annotated[str, Field(max_length=200)] = ""
    model: str = ""
    source_gpu: Annotated[str, Field(max_length=200)] = ""


# --- upload fields ----------------------------------------------------------------------------------------------

UPLOAD_FIELDS = ("name", "model", "source_gpu", "prompts", "routing")


def import_options(fields: dict[str, str]) -> ImportOptions:
    """Raises Refused, UnsupportedModel."""
    unknown = set(fields) - set(UPLOAD_FIELDS)
    if unknown:
        raise Refused(f"field {min(unknown)!r} is not known; an upload has {', '.join(UPLOAD_FIELDS)} and files")
    return ImportOptions(
        name=fields.get("name", "").strip()[:200],
        model=_model(fields.get("model", "").strip()),
        source_gpu=fields.get("source_gpu", "").strip() or None,
        prompts=_prompts(fields.get("prompts", "").strip()),
        routing=fields.get("routing", "").strip(),
    )


def _model(text: str) -> ModelSpec | None:
    if not text:
        return None
    if not text.startswith("{"):
        # A name, never a path: what a caller may not read must not be read for them.
        if "/../" in f"/{text}/" or text.startswith(("/", ".", "~")) or text.endswith(".json"):
            raise UnknownModel(f"{text!r} is not a known model; known models are {', '.join(known_models())}")
        return load_model(text)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"model is not JSON ({error})") from error
    try:
        return ModelSpec.model_validate(config)
    except ValidationError:
        return ModelSpec.from_config(config, str(config.get("_name_or_path") or config.get("model_type") or ""))


def _prompts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise Refused(f"prompts={text[:100]!r}: give token counts such as 512,1200")
    return tuple(int(part) for part in parts)


# --- control frames ---------------------------------------------------------------------------------------------


class Position(Body):
    position: _Count


class At(Body):
    at_ms: Annotated[int, Field(ge=0, le=2**53)]


_Speed = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None


class Subscribe(Body):
    """Send a run's records from here on; types: only records of these types, where given."""

    op: Literal["subscribe"]
    run: _Id
    start: Annotated[Literal["start", "live"] | Position | At, Field(alias="from")] = "live"
    speed: _Speed = None  # log time ÷ wall time; None: as fast as the credits go
    types: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=64)] = []


class Pause(Body):
    op: Literal["pause"]


class Resume(Body):
    op: Literal["resume"]


class Seek(Body):
    """Go on from another place; `id` comes back in the answer, and frames before that answer are of the old place."""

    op: Literal["seek"]
    position: _Count | None = None
    at_ms: _Count | None = None
    id: _Count = 0

    @model_validator(mode="after")
    def _one_place(self) -> Seek:
        if (self.position is None) == (self.at_ms is None):
            raise ValueError("give either position or at_ms")
        return self


class Speed(Body):
    op: Literal["speed"]
    value: _Speed


class Credit(Body):
    """Allow this many more frames of records."""

    op: Literal["credit"]
    count: Annotated[int, Field(ge=1, le=CREDITS_LIMIT)]


Control = Subscribe | Pause | Resume | Seek | Speed | Credit

_CONTROL: TypeAdapter[Control] = TypeAdapter(Annotated[Control, Field(discriminator="op")])


def parse_control(text: str) -> Control:
    """Raises Refused with one sentence."""
    try:
        return _CONTROL.validate_json(text)
    except ValidationError as error:
        raise Refused(first_error(error.errors(include_url=False, include_context=False))) from error


def first_error(errors: Sequence[Any]) -> str:
    """The first of pydantic's errors as one sentence: which value, and what is wrong with it."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    said = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        said = "is not known here"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{place}: {said}{more}"
