from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.mailbox.redis._address import parse
from loopwarden.mailbox.redis._link import UNUSED_SECONDS, link_to

if TYPE_CHECKING:
    from redis_servers import Server


def test_connections_that_nobody_has_needed_for_a_while_are_closed(server: Server) -> None:
    link: Any = link_to(parse(server.url)[0])
    connections = [link._connect(None) for _ in range(3)]
    for connection in connections:
        link._release(connection)
    now = SYSTEM_CLOCK.monotonic()
    link.tidy(now)

    link.run("jobs", [("PING",)])
    link.tidy(now + UNUSED_SECONDS / 2)
    kept_at_first = [connection.is_connected for connection in connections]
    link.tidy(now + UNUSED_SECONDS)

    assert kept_at_first == [True, True, True]
    assert [connection.is_connected for connection in connections] == [False, False, True]
    link.close()
