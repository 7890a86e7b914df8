"""The kinds of workers that a loop can have, so that a test of what all of them promise is run with each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import pytest
from typing_extensions import override

from loopwarden.actors import MailboxLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.mailbox import Message

__all__ = ["CoroutineLoop", "loop_kind", "pytest_generate_tests"]

T = TypeVar("T")
KINDS = ("thread", "asyncio")


class CoroutineLoop(MailboxLoop[T], Generic[T]):
    """A loop whose coroutines call a plain handler on a thread, so that this may block as it likes."""

    def __init__(self, source: Any, handler: Callable[[Any], object], **options: Any) -> None:
        async def handle(message: Message[Any, Any]) -> object:
            return await asyncio.to_thread(handler, message)

        super().__init__(source, handle, **options)

    @override
    def __repr__(self) -> str:
        return super().__repr__().replace("CoroutineLoop", "MailboxLoop")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses `loop_kind` with each kind, unless it is marked as one of threads alone."""
    if "loop_kind" in metafunc.fixturenames:
        is_of_threads = metafunc.definition.get_closest_marker("threads") is not None
        metafunc.parametrize("loop_kind", KINDS[:1] if is_of_threads else KINDS, indirect=True)


@pytest.fixture
def loop_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the test's module make loops of one kind."""
    kind: str = request.param
    if kind == "asyncio":
        monkeypatch.setattr(cast("Any", request).module, "MailboxLoop", CoroutineLoop)
    return kind
