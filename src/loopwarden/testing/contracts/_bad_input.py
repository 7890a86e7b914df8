"""What is refused, by name, with nothing changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import (
    InvalidParameterError,
)
from loopwarden.mailbox import Message
from loopwarden.testing.contracts._fixtures import MailboxFixtures, bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.testing.contracts._fixtures import Box

__all__ = ["BadInput"]


_NO_SECONDS: tuple[object, ...] = (None, "", "x", (), float("nan"), -1)
_NO_MAILBOX: tuple[object, ...] = (5, 0.5, "", b"replies")
_BAD_SENDS: list[dict[str, object]] = [
    *({"delay": value} for value in _NO_SECONDS),
    *({"timeout": value} for value in _NO_SECONDS),
    *({"reply_to": value} for value in _NO_MAILBOX),
]


class BadInput(MailboxFixtures):
    """What is refused, by name, with nothing changed."""

    # Bad input.

    @pytest.mark.parametrize(
        ("call", "culprit"),
        [
            ({"max_messages": 0}, "max_messages"),
            ({"max_messages": True}, "max_messages"),
            ({"max_messages": 1.5}, "max_messages"),
            ({"visibility_timeout": -1}, "visibility_timeout"),
            ({"visibility_timeout": 43_201}, "visibility_timeout"),
            ({"visibility_timeout": float("nan")}, "visibility_timeout"),
            ({"visibility_timeout": "5"}, "visibility_timeout"),
            ({"wait_time_seconds": 21}, "wait_time_seconds"),
            ({"wait_time_seconds": True}, "wait_time_seconds"),
        ],
        ids=str,
    )
    def test_a_bad_receive_is_refused_by_name(self, mailbox: Box, call: dict[str, Any], culprit: str) -> None:
        mailbox.send("there")

        with pytest.raises(InvalidParameterError, match=culprit) as caught:
            mailbox.receive(**call)

        assert caught.value.parameter == culprit
        assert bodies(mailbox.receive()) == ["there"]

    @pytest.mark.parametrize(
        ("call", "culprit"),
        [
            ({"delay": -1}, "delay"),
            ({"delay": "5"}, "delay"),
            ({"dedup_id": ""}, "dedup_id"),
            ({"dedup_id": 5}, "dedup_id"),
            ({"headers": {"a": 1}}, "headers"),
            ({"headers": 5}, "headers"),
            ({"timeout": float("inf"), "headers": {}}, "timeout"),
        ],
        ids=str,
    )
    def test_a_bad_send_is_refused_by_name_and_nothing_is_sent(
        self, mailbox: Box, call: dict[str, Any], culprit: str
    ) -> None:
        with pytest.raises(InvalidParameterError, match=culprit):
            mailbox.send("body", **call)

        assert mailbox.approximate_count() == 0

    @pytest.mark.parametrize("seconds", [-1, True, "5", float("inf"), 43_201])
    def test_a_bad_time_out_of_a_message_is_refused_and_leaves_it_open(self, mailbox: Box, seconds: Any) -> None:
        mailbox.send("body")
        [message] = mailbox.receive()

        with pytest.raises(InvalidParameterError, match="visibility_timeout"):
            message.nack(visibility_timeout=seconds)
        with pytest.raises(InvalidParameterError, match="timeout"):
            message.extend_visibility(seconds)

        message.acknowledge()

    @pytest.mark.parametrize("bodies", ["abc", b"abc", None, 5], ids=repr)
    def test_send_many_refuses_what_is_no_list_of_bodies(self, mailbox: Box, bodies: Any) -> None:
        with pytest.raises(InvalidParameterError, match="bodies"):
            mailbox.send_many(bodies)

        assert mailbox.approximate_count() == 0

    @pytest.mark.parametrize("arguments", _BAD_SENDS, ids=repr)
    def test_send_refuses_what_it_cannot_use_by_name(self, mailbox: Box, arguments: dict[str, Any]) -> None:
        with pytest.raises(InvalidParameterError, match=next(iter(arguments))):
            mailbox.send("body", **arguments)

        assert mailbox.approximate_count() == 0

    @pytest.mark.parametrize(
        ("method", "arguments", "culprit"),
        [
            ("nack", {"error": ValueError("an exception")}, "error"),
            ("nack", {"visibility_timeout": 60, "error": b"bytes"}, "error"),
            ("dead_letter", {"reason": ValueError("an exception")}, "reason"),
            ("dead_letter", {"reason": None}, "reason"),
            ("dead_letter", {"reason": "a reason", "error": ValueError("an exception")}, "error"),
        ],
        ids=["nack", "nack-bytes", "reason", "no-reason", "error"],
    )
    def test_nack_and_dead_letter_refuse_what_is_no_text_and_lose_nothing(
        self, make: Callable[..., Box], method: str, arguments: dict[str, Any], culprit: str
    ) -> None:
        mailbox = make(max_deliveries=1)
        mailbox.send("careful")
        [message] = mailbox.receive()

        with pytest.raises(InvalidParameterError, match=culprit):
            getattr(message, method)(**arguments)

        assert (mailbox.approximate_count(), mailbox.dead_letters.approximate_count()) == (1, 0)
        message.nack(error="as a text")
        assert [letter.error for letter in mailbox.dead_letters.peek()] == ["as a text"]

    @pytest.mark.parametrize(
        "options", [{"max_deliveries": 0}, {"max_size": 0}, {"max_size": True}, {"name": ""}], ids=str
    )
    def test_a_bad_mailbox_is_refused_by_name(self, make: Callable[..., Box], options: dict[str, Any]) -> None:
        with pytest.raises(InvalidParameterError, match=next(iter(options))):
            make(**options)

    def test_a_mailbox_and_its_messages_print_what_they_are(self, mailbox: Box) -> None:
        mailbox.send("body")
        [message] = mailbox.receive()

        assert "'jobs'" in repr(mailbox)
        assert message.id in repr(message)
        assert isinstance(message, Message)
        message.acknowledge()
        assert "finalised" in repr(message)
