"""`EvalLoop`: runs samples through a `MainLoop`, and scores what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import override

from loopwarden._log import describe
from loopwarden.actors._eval_progress import EvalProgress, SampleScored
from loopwarden.actors._mailbox_loop import MailboxLoop
from loopwarden.actors._ref import ControlRef
from loopwarden.actors._sample import EvalResult
from loopwarden.actors._session_ref import SessionRef, StateRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors._main_loop import MainLoop
    from loopwarden.actors._sample import Sample
    from loopwarden.mailbox import Mailbox, Message

__all__ = ["EvalLoop"]

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")


class EvalLoop(MailboxLoop["Sample[InputT, OutputT]"], Generic[InputT, OutputT]):
    """Takes samples from a mailbox, has a `MainLoop` answer them, and scores the answers.

    A sample that raises is a result with its error, not a sample to try again. The result goes to the mailbox
    that the sample's message names, or else to ``results``.

    With a ``session`` each sample has exactly one result in it, whatever is killed and however often: a result is
    there before its message is acknowledged, and a sample that has one is not run again when its message comes again.
    Only a sample that was being run when the process died is run once more. The result that is sent is the one in the
    session; it may be sent more than once, and is the same each time.

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
            raise TypeError(f"loop must be a MainLoop, got {loop!r}")
        if not callable(evaluator):
            raise TypeError(f"evaluator must be something to call, got {evaluator!r}")
        if session is not None and not isinstance(session, ControlRef):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"session must be the ref of a Session, got {session!r}")
        if isinstance(session, SessionRef) and EvalProgress not in session.state:
            raise ValueError(f"{session} has no EvalProgress: give EVAL_PROGRESS among its slices")
        super().__init__(samples, self._score, **options)
        self._loop = loop
        self._evaluator = evaluator
        self._results = results
        self._session = session

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
        result = self.evaluate(message.body) if self._session is None else self._recorded(self._session, message.body)
        if message.reply_to is not None:
            message.reply(result)
        elif self._results is not None:
            self._results.send(result)
        return result

    def _recorded(self, session: ControlRef, sample: Sample[InputT, OutputT]) -> EvalResult[OutputT]:
        """Return the result that the session has of a sample; if it has none, let it have one first."""
        known = session.send(StateRequest()).wait()[EvalProgress].results.get(sample.id)
        if known is None:
            session.ask(SampleScored(self.evaluate(sample)))  # answered when it is written
            # Not our own: another worker may have been first, because our lease was over.
            known = session.send(StateRequest()).wait()[EvalProgress].results[sample.id]
        return known
