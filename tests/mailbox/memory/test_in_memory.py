from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import InMemoryMailbox, Mailbox
from loopwarden.testing.contracts import MailboxContract

if TYPE_CHECKING:
    from loopwarden.testing import FakeClock


class InMemory(MailboxContract):
    roundtrip = False

    @pytest.fixture(autouse=True)
    def registry(self) -> None:
        self.known: dict[str, Mailbox[Any, Any]] = {}

    def make_mailbox(self, clock: FakeClock, name: str = "jobs", **options: Any) -> Mailbox[Any, Any]:
        mailbox: InMemoryMailbox[Any, Any] = InMemoryMailbox(
            name, clock=clock, roundtrip=self.roundtrip, resolver=self.known.get, **options
        )
        self.known[name] = mailbox
        return mailbox


class TestInMemoryMailbox(InMemory):
    def test_in_memory_mailbox_has_all_capabilities_but_durable_and_shared(self, mailbox: Mailbox[Any, Any]) -> None:
        missing = {name for name in mailbox.capabilities.__slots__ if not getattr(mailbox.capabilities, name)}

        assert missing == {"durable", "shared"}

    def test_in_memory_mailbox_has_the_type_of_a_mailbox(self) -> None:
        typed: Mailbox[str, int] = InMemoryMailbox[str, int]("jobs", body=str)

        assert typed.name == "jobs"

    def test_a_body_is_kept_as_it_is(self, mailbox: Mailbox[Any, Any]) -> None:
        body = ["the same list"]
        mailbox.send(body)

        [message] = mailbox.receive()

        assert message.body is body


class TestInMemoryMailboxWithRoundtrip(InMemory):
    roundtrip = True

    def test_a_body_that_cannot_be_read_is_a_dead_letter_with_its_raw_bytes(
        self, mailbox: InMemoryMailbox[Any, Any]
    ) -> None:
        mailbox.send_many(["good", "bad", "good too"])
        mailbox.store.queue.fresh[1].body = b"{not json"

        received = [message.body for message in mailbox.receive(max_messages=10)]

        [letter] = mailbox.dead_letters.peek()
        assert received == ["good", "good too"]
        assert (letter.body, letter.raw, letter.reason) == (None, b"{not json", "its body cannot be read")
