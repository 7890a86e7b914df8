"""`EvalLoop`: runs samples through a `MainLoop`, and scores what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from loopwarden._log import describe
from loopwarden.actors._mailbox_loop import MailboxLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors._main_loop import MainLoop
    from loopwarden.mailbox import Mailbox, Message

__all__ = ["EvalLoop", "EvalResult", "Sample"]

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


class EvalLoop(MailboxLoop["Sample[InputT, OutputT]"], Generic[InputT, OutputT]):
    """Takes samples from a mailbox, has a `MainLoop` answer them, and scores the answers.

    A sample that raises is a result with its error, not a sample to try again. The result goes to the mailbox
    that the sample's message names, or else to ``results``.

    Args:
        loop: Answers the samples; it need not run.
        evaluator: Called with what came out and what should; returns the score.
        samples: Where samples come from.
        results: Where results go of samples whose message names no mailbox.
        options: Those of `MailboxLoop`.
    """

    def __init__(
        self,
        loop: MainLoop[InputT, OutputT],
        evaluator: Callable[[OutputT, OutputT], float],
        samples: Mailbox[Sample[InputT, OutputT], EvalResult[OutputT]],
        results: Mailbox[EvalResult[OutputT], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(samples, self._score, **options)
        self._loop = loop
        self._evaluator = evaluator
        self._results = results

    def evaluate(self, sample: Sample[InputT, OutputT]) -> EvalResult[OutputT]:
        """Return the result of one sample, as the loop does."""
        try:
            output = self._loop.execute(sample.input)
            score = self._evaluator(output, sample.expected)
        except Exception as error:  # noqa: BLE001  isolates user code: it is the result
            return EvalResult[Any](sample_id=sample.id, error=describe(error))
        return EvalResult[Any](sample_id=sample.id, output=output, score=score)

    @override
    def process(self, body: Sample[InputT, OutputT]) -> object:
        """Return the result of one sample."""
        return self.evaluate(body)

    def _score(self, message: Message[Sample[InputT, OutputT], EvalResult[OutputT]]) -> EvalResult[OutputT]:
        result = self.evaluate(message.body)
        if message.reply_to is not None:
            message.reply(result)
        elif self._results is not None:
            self._results.send(result)
        return result
