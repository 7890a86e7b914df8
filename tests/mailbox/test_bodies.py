"""Whatever the type and the body: it comes back equal, or is refused at `send`, by both back ends alike."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

from loopwarden.errors import InvalidParameterError, SerializationError
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox
from loopwarden.mailbox._difference import difference
from loopwarden.testing import FakeClock
from loopwarden.testing.contracts._any_bodies import types_and_bodies

if TYPE_CHECKING:
    from pathlib import Path


def send(mailbox: Any, body: Any) -> str | None:
    """Return why a body is refused, if it is."""
    try:
        mailbox.send(body)
    except SerializationError as error:
        return str(error)
    return None


@pytest.mark.parametrize("count", [300, pytest.param(5_000, marks=pytest.mark.prove)])
def test_send_accepts_what_comes_back_equal_and_refuses_the_rest_on_both_back_ends(tmp_path: Path, count: int) -> None:
    names = itertools.count()
    accepted = refused = 0

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(types_and_bodies())
    def check(case: tuple[Any, Any]) -> None:
        nonlocal accepted, refused
        kind, body = case
        name = f"box-{next(names)}"
        try:
            in_memory: InMemoryMailbox[Any, Any] = InMemoryMailbox(name, body=kind, clock=FakeClock())
        except InvalidParameterError:  # a type that is none, such as a model whose default does not fit its field
            return
        on_disk: SqliteMailbox[Any, Any] = SqliteMailbox(tmp_path / "mail.db", name, body=kind, clock=FakeClock())
        try:
            why = send(on_disk, body)

            assert send(in_memory, body) == why
            if why is not None:
                refused += 1
                assert "\n" not in why
                assert on_disk.approximate_count() == in_memory.approximate_count() == 0
                return
            accepted += 1
            [kept], [read] = in_memory.receive(), on_disk.receive()
            assert difference(kept.body, read.body) is None
            read.dead_letter("for the test")
            [letter] = on_disk.dead_letters.peek()
            assert difference(kept.body, letter.body) is None
        finally:
            on_disk.close()

    # One is open throughout, so that the others need not make the file anew.
    with contextlib.closing(SqliteMailbox[Any, Any](tmp_path / "mail.db", "first", clock=FakeClock())):
        check()

    assert accepted
    assert refused
