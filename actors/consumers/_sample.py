"""`Sample` and `EvalResult`: what an `EvalLoop` takes, and what comes of it."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

__all__ = ["EvalResult", "Sample"]

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")


class Sample(BaseModel, Generic[InputT, OutputT]):
    """An input, and what should come out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    input: InputT
    expected: OutputT


class EvalResult(BaseModel, Generic[OutputT]):
    """What came out of a sample, and how good it is; an error instead, if something raised."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sample_id: str
    output: OutputT | None = None
    score: float | None = None
    error: str | None = None
