"""A cluster whose servers say nothing holds up each call by its own time, not by that of all others too."""

from __future__ import annotations

from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ClusterDownError

from loopwarden._blocking import SYSTEM
from loopwarden.mailbox.redis import _link
from loopwarden.mailbox.redis._address import parse
from loopwarden.mailbox.redis._link import ClusterLink, link_to
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis_servers import Server

PATIENCE = 60.0
MANY = 8


class Silent:
    """What a link to a cluster uses of redis-py's client: nothing can be found, and all learn that at the same moment.

    Args:
        look: Called by each look.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._all = Barrier(MANY, timeout=PATIENCE)
        self._look = look
        self.looks = 0
        self.nodes_manager = self

    def get_node_from_key(self, key: str) -> Any:
        self._all.wait()
        raise ClusterDownError(f"no node has {key}")

    def initialize(self) -> None:
        self.looks += 1
        self._look()
        raise ClusterDownError("no node answers")


def call(link: ClusterLink) -> None:
    with pytest.raises(ClusterDownError, match="no node has jobs"):
        link.run("jobs", [("PING",)])


def test_calls_that_fail_at_once_look_once_where_keys_are() -> None:
    client: Any = Silent(lambda: None)
    link = ClusterLink(lambda: client)

    for each in [run_in_background(lambda: call(link), SYSTEM) for _ in range(MANY)]:
        each.wait(PATIENCE)
    for each in [run_in_background(lambda: call(link), SYSTEM) for _ in range(MANY)]:
        each.wait(PATIENCE)

    assert (client.looks, link.looks) == (2, 2)


def test_call_does_not_wait_for_the_look_of_another_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_link, "_ASK_SECONDS", 0.05)
    over = SYSTEM.gate()
    client: Any = Silent(lambda: over.wait(PATIENCE))
    link = ClusterLink(lambda: client)
    ended = SYSTEM.queue()

    def use() -> None:
        call(link)
        ended.put(None)

    all_of_them = [run_in_background(use, SYSTEM) for _ in range(MANY)]
    for _ in range(MANY - 1):
        ended.get()
    is_first = ended.empty()
    over.open()
    for each in all_of_them:
        each.wait(PATIENCE)

    assert (is_first, client.looks) == (True, 1)


@pytest.mark.parametrize(("option", "answers"), [("", _link.ANSWER_SECONDS), ("?socket_timeout=2", 2.0)])
def test_server_is_asked_for_a_second_where_keys_are_and_for_longer_what_it_is_to_do(
    cluster: list[Server], option: str, answers: float
) -> None:
    link: Any = link_to(parse(f"redis+cluster://127.0.0.1:{cluster[0].port}{option}")[0])

    link.run("jobs", [("PING",)])

    [node] = link._links.values()
    asked = link._made.nodes_manager.connection_kwargs
    assert (asked["socket_timeout"], asked["socket_connect_timeout"]) == (1.0, 1.0)
    assert (node._settings["socket_timeout"], node._settings["socket_connect_timeout"]) == (answers, 1.0)
    link.close()
