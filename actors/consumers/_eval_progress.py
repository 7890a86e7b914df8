"""`EvalProgress`: which samples of an evaluation are scored, as a slice of a session."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  pydantic reads it
from dataclasses import dataclass, field
from typing import Any, Final, final

from loopwarden.actors.consumers._sample import EvalResult
from loopwarden.actors.session._slice import Slice

__all__ = ["EVAL_PROGRESS", "EvalProgress", "SampleScored"]


@final
@dataclass(frozen=True, slots=True)
class SampleScored:
    """A sample has a result."""

    result: EvalResult[Any]


@final
@dataclass(frozen=True, slots=True)
class EvalProgress:
    """The results so far, by the ids of their samples; each has exactly one, its first."""

    results: Mapping[str, EvalResult[Any]] = field(default_factory=dict[str, EvalResult[Any]])

    def with_result(self, scored: SampleScored) -> EvalProgress:
        """Return the progress with one more result; the same if the sample has one."""
        sample = scored.result.sample_id
        return self if sample in self.results else EvalProgress({**self.results, sample: scored.result})


#: What a session needs for the checkpoints of an `EvalLoop`.
EVAL_PROGRESS: Final = Slice(EvalProgress()).on(SampleScored, EvalProgress.with_result)
