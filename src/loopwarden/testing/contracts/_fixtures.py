"""What the rules of a mailbox need: a clock, mailboxes, and a thread now and then."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from loopwarden.mailbox import Mailbox
from loopwarden.testing._fake_clock import FakeClock
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loopwarden._ticket import Ticket

__all__ = ["Box", "MailboxFixtures", "bodies"]

Box: TypeAlias = Mailbox[Any, Any]


def bodies(messages: Any) -> list[Any]:
    """Return the bodies of messages."""
    return [message.body for message in messages]


class MailboxFixtures(abc.ABC):
    """Makes mailboxes, and closes them."""

    #: How long to wait, in real seconds, for what should happen at once.
    patience = 60.0

    @abc.abstractmethod
    def make_mailbox(self, clock: FakeClock, name: str = "jobs", **options: Any) -> Box:
        """Return an empty mailbox that lives by ``clock``, and blocks through its seam, or in ``outside()`` of that.

        The options are ``body``, ``reply``, ``max_deliveries`` and ``max_size``; mailboxes made with different names in
        one test are in the same store, and find each other by their names for replies.
        """

    @pytest.fixture
    def clock(self) -> FakeClock:
        """A clock that stands still."""
        return FakeClock()

    @pytest.fixture
    def make(self, clock: FakeClock) -> Iterator[Callable[..., Box]]:
        """Make mailboxes, and close them at the end."""
        made: list[Box] = []

        def make(name: str = "jobs", **options: Any) -> Box:
            made.append(self.make_mailbox(clock, name, **options))
            return made[-1]

        yield make
        for mailbox in made:
            mailbox.close()

    @pytest.fixture
    def mailbox(self, make: Callable[..., Box]) -> Box:
        """A mailbox with the defaults."""
        return make()

    def in_background(self, clock: FakeClock, job: Callable[[], Any]) -> Ticket[Any]:
        """Run a job on a thread of its own, which ``clock`` knows of; return the ticket of its result."""
        return run_in_background(job, clock.blocking)
