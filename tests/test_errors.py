"""Errors arrive as they were raised, also from another process."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from loopwarden import errors
from loopwarden.actors import OffloadPool
from loopwarden.errors import LoopwardenError, MailboxError, MailboxFullError

if TYPE_CHECKING:
    from collections.abc import Callable

CAUSE = ValueError("its cause")
FILE = Path("session.journal")
#: One of each class.
EXAMPLES: list[LoopwardenError] = [
    errors.LoopwardenError("it failed"),
    errors.TicketError("it failed"),
    errors.TicketAlreadyCompletedError("it was completed"),
    errors.TicketCancelledError("it was cancelled"),
    errors.SelfWaitError("ShutdownRequest to the loop"),
    errors.TicketTimeoutError(1.5, " from the loop", pending=3),
    errors.ActorError("it failed"),
    errors.ActorDeadError("loop 'resize'", CAUSE),
    errors.LoopAbandonedError("resize", "silent for 5 s"),
    errors.LoopNotRunningError("resize", "stopped"),
    errors.Retry(30, "the shop is closed"),
    errors.UnsupportedRequestError("loop 'resize'", "PauseRequest", "it has no pause()"),
    errors.SupervisionError("resize", "failed"),
    errors.ChildExistsError("resize", "up"),
    errors.ChildNotFoundError("resize"),
    errors.ChildBusyError("resize", "up"),
    errors.ChildUnavailableError("resize", "restarting", 12.5),
    errors.InvalidChildError("resize", "has no id"),
    errors.StartFailed("resize", CAUSE),
    errors.StillRunningError("health"),
    errors.SupervisorGaveUp("media", "resize", "failed too often", CAUSE),
    errors.JournalError(FILE, "cannot be used"),
    errors.JournalDamagedError(FILE, "is damaged", "shop", 7),
    errors.JournalDeletedError(FILE, "was deleted"),
    errors.JournalLockedError(FILE, "is locked"),
    errors.JournalReplayError(FILE, "shop", 7, "no such slice"),
    errors.JournalUnavailableError(FILE, "disk full"),
    errors.MailboxError("jobs", "it failed"),
    errors.InvalidParameterError("jobs", "max_size", [0], "a whole number"),
    errors.MailboxClosedError("jobs"),
    errors.MailboxConnectionError("jobs", "no route"),
    errors.MailboxDrainingError("jobs"),
    errors.MailboxFullError("jobs", 10),
    errors.MessageFinalizedError("jobs", "1"),
    errors.ReceiptHandleExpiredError("jobs", "1", "2"),
    errors.ReplyNotAvailableError("jobs", "1", "it names no mailbox"),
    errors.SerializationError("jobs", "it is no text"),
]


class OutOfSpaceError(MailboxError):
    """As a back end of one's own has it."""

    def __init__(self, *, disk: str) -> None:
        super().__init__("jobs", f"{disk} is full")
        self.disk = disk

    @override
    def __str__(self) -> str:
        return f"{super().__str__()}, make room on {self.disk}"


def pickled(error: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(error, protocol))  # noqa: S301  our own


def test_every_error_has_an_example() -> None:
    assert {type(each).__name__ for each in EXAMPLES} == set(errors.__all__)


@pytest.mark.parametrize("error", [*EXAMPLES, OutOfSpaceError(disk="/srv")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "passed_on",
    [copy.copy, copy.deepcopy, pickled, partial(pickled, protocol=0)],
    ids=["copy", "deepcopy", "pickle", "pickle-0"],
)
def test_error_that_is_copied_or_pickled_says_the_same(error: Exception, passed_on: Callable[[Any], Any]) -> None:
    again = passed_on(error)

    assert type(again) is type(error)
    assert again is not error
    assert (str(again), repr(again), again.args) == (str(error), repr(error), error.args)
    assert vars(again) == vars(error)


def test_error_that_is_pickled_keeps_its_notes() -> None:
    error = MailboxFullError("jobs", 10)
    error.add_note("in the second batch")

    assert pickled(error).__notes__ == ["in the second batch"]


def test_error_that_is_pickled_can_be_raised_and_caught_by_its_bases() -> None:
    with pytest.raises(TimeoutError, match=r"no answer from the loop after 1\.5 s"):
        raise pickled(errors.TicketTimeoutError(1.5, " from the loop"))


def test_error_that_is_raised_in_another_process_arrives_as_it_is() -> None:
    full = "from loopwarden.errors import MailboxFullError\nraise MailboxFullError('jobs', 10)"
    with OffloadPool(processes=True, workers=1) as pool:
        answer = pool.submit(exec, full)

        with pytest.raises(MailboxFullError, match="mailbox 'jobs': it is full, with 10 messages") as raised:
            answer.wait(60)
    assert (raised.value.mailbox, raised.value.max_size) == ("jobs", 10)
