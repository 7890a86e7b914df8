"""`EvalLoop`: runs samples through a `MainLoop`, and scores what comes out."""

from __future__ import annotations

import logging
from collections.abc import Mapping  # noqa: TC003  pydantic reads it
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python
from typing_extensions import override

from loopwarden._log import describe, report
from loopwarden.actors.consumers._mailbox_loop import MailboxLoop
from loopwarden.actors.runtime._ref import ControlRef
from loopwarden.actors.session._session_ref import SessionRef, StateRequest
from loopwarden.actors.session._slice import Slice
from loopwarden.errors import ActorDeadError, ChildUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors.consumers._main_loop import MainLoop
    from loopwarden.mailbox import Mailbox, Message

__all__ = ["EVAL_PROGRESS", "EvalLoop", "EvalProgress", "EvalResult", "Sample", "SampleScored"]

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


#: Seconds between two looks whether a session that was away is back: soon enough for a restart, and no busy loop.
AWAY = 1.0


class EvalLoop(MailboxLoop["Sample[InputT, OutputT]"], Generic[InputT, OutputT]):
    """Takes samples from a mailbox, has a `MainLoop` answer them, and scores the answers.

    A sample that raises is a result with its error, not a sample to try again; so is one whose score is no number, or
    whose output the session cannot keep. The result goes to the mailbox that the sample's message names, or else to
    ``results``.

    With a ``session`` each sample has exactly one result in it, whatever is killed and however often: a result is
    there before its message is acknowledged, and a sample that has one is not run again when its message comes again.
    Only a sample that was being run when the process, or the session, died is run once more. The result that is sent is
    the one in the session, whose output is plain JSON data: a model is a dict there, a tuple a list. It may be sent
    more than once, and is the same each time. While the session is away nothing is run: messages are put back,
    uncounted, and the loop looks again every second. A journal that cannot be written, though, counts as a failure.

    Args:
        loop: Answers the samples; it need not run.
        evaluator: Called with what came out and what should; returns the score.
        samples: Where samples come from.
        results: Where results go of samples whose message names no mailbox.
        session: Keeps the results: a ref to a session with the slice `EVAL_PROGRESS`, also that of a supervised one.
        options: Those of `MailboxLoop`.
    """

    def __init__(
        self,
        loop: MainLoop[InputT, OutputT],
        evaluator: Callable[[OutputT, OutputT], float],
        samples: Mailbox[Sample[InputT, OutputT], EvalResult[OutputT]],
        results: Mailbox[EvalResult[OutputT], Any] | None = None,
        *,
        session: ControlRef | None = None,
        **options: Any,
    ) -> None:
        if not callable(getattr(loop, "execute", None)):
            raise TypeError(f"loop must be a MainLoop, got {describe(loop)}")
        if not callable(evaluator):
            raise TypeError(f"evaluator must be callable, got {describe(evaluator)}")
        if session is not None and not isinstance(session, ControlRef):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"session must be the ref of a Session, got {describe(session)}")
        if isinstance(session, SessionRef) and EvalProgress not in session.state:
            raise ValueError(f"{session} has no EvalProgress: give EVAL_PROGRESS among its slices")
        super().__init__(samples, self._score, **options)
        self._loop = loop
        self._evaluator = evaluator
        self._results = results
        self._session = session
        self._is_away = False  # for the log alone

    def evaluate(self, sample: Sample[InputT, OutputT]) -> EvalResult[OutputT]:
        """Return the result of one sample, as the loop does."""
        try:
            output = self._loop.execute(sample.input)
            score = self._evaluator(output, sample.expected)
            return EvalResult[Any](sample_id=sample.id, output=output, score=score)
        except Exception as error:  # noqa: BLE001  isolates user code: it is the result
            return _failed(sample, error)

    @override
    def process(self, body: Sample[InputT, OutputT]) -> object:
        """Return the result of one sample."""
        return self.evaluate(body)

    def _score(self, message: Message[Sample[InputT, OutputT], EvalResult[OutputT]]) -> EvalResult[OutputT] | None:
        try:
            session, sample = self._session, message.body
            result = self.evaluate(sample) if session is None else self._recorded(session, sample)
        except (ActorDeadError, ChildUnavailableError) as error:
            self._wait_for_the_session(message, error)
            return None
        self._is_away = False
        if message.reply_to is not None:
            message.reply(result)
        elif self._results is not None:
            self._results.send(result)
        return result

    def _recorded(self, session: ControlRef, sample: Sample[InputT, OutputT]) -> EvalResult[OutputT]:
        """Return the result that the session has of a sample; if it has none, let it have one first."""
        known = session.send(StateRequest()).wait()[EvalProgress].results.get(sample.id)
        if known is None:
            try:
                session.ask(SampleScored(_plain(self.evaluate(sample))))  # answered when it is written
            except ValueError as error:  # JSON cannot carry it
                session.ask(SampleScored(_failed(sample, error)))
            # Not our own: another worker may have been first, because our lease was over.
            known = session.send(StateRequest()).wait()[EvalProgress].results[sample.id]
        return known

    def _wait_for_the_session(self, message: Message[Any, Any], error: Exception) -> None:
        """Leave the message to others, and take no other one for a while: a restart must not use up deliveries."""
        message.put_back()
        if not self._is_away:
            name = self._source.name
            report(logging.WARNING, "session unavailable, samples of %r wait for it: %s", name, error, mailbox=name)
        self._is_away = True
        if message.token is not None:
            message.token.wait(AWAY, self._clock)  # woken by time, or by the stop


def _failed(sample: Sample[Any, Any], error: Exception) -> EvalResult[Any]:
    # What other people's errors say may be no text that can be written.
    text = describe(error).encode(errors="backslashreplace").decode()
    return EvalResult[Any](sample_id=sample.id, error=text)


def _plain(result: EvalResult[Any]) -> EvalResult[Any]:
    """Return a result as it is after a restart; what JSON cannot carry is left to the session to refuse."""
    output = to_jsonable_python(result.output, inf_nan_mode="constants", round_trip=True)
    return result.model_copy(update={"output": output})
