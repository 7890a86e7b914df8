"""How many servers, processes and connections a rate of messages needs: ``python scripts/sizing.py 1000 100000``.

A model, not a measurement: what it assumes stands here, each with where it comes from. Measure your own handlers, and
change it.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import final

#: Microseconds of a core for one message, by messages in a call of `send_many` and `prefetch` of loops, which
#: acknowledge one by one: of the server, and of our side of it. Measured with bodies of 100 bytes on one machine of
#: 2026, on Redis 7.0 and Valkey 9.1 alike, with appendfsync everysec.
SERVER_MICROSECONDS = {1: 72, 10: 28, 100: 24}
CLIENT_MICROSECONDS = {1: 68, 10: 26, 100: 22}
#: Bytes on the wire for one message, both ways, besides a body that travels twice; measured likewise.
WIRE_BYTES = {1: 690, 10: 350, 100: 320}
#: Bytes of memory for a message that is ready, and for one that is leased, besides its body; measured likewise.
READY_BYTES, LEASED_BYTES = 84, 281
#: How busy a server, a process and a network may be, so that a burst does not wait for long.
SHARE = 0.6
#: Bits per second of the network of a server.
NETWORK = 10e9
#: Bytes of a body, seconds of a core that a handler takes, workers of a process, seconds of messages that may pile up.
BODY, HANDLER, WORKERS, BACKLOG = 100, 0.001, 16, 60.0
#: Connections of a process: one that waits, and those of workers that ask at the same moment.
CONNECTIONS = 1 + math.ceil(WORKERS * SHARE)


@final
@dataclass(frozen=True, slots=True)
class Need:
    """What a load needs."""

    #: Servers, or primaries of a cluster, each with as many mailboxes: a mailbox is on one, and a process uses one.
    servers: int
    processes: int
    #: Of one server.
    connections: int
    #: Of one server, when `BACKLOG` seconds of messages have piled up.
    gigabytes: float
    #: What is busiest.
    first: str


def need(rate: float, batch: int) -> Need:
    """Return what so many messages a second need, with so many in a call."""
    of_servers = {
        "the core of a server": rate * SERVER_MICROSECONDS[batch] / 1e6 / SHARE,
        "its network": rate * (WIRE_BYTES[batch] + 2 * BODY) * 8 / NETWORK / SHARE,
    }
    servers = max(1, math.ceil(max(of_servers.values())))
    of_processes = rate * (CLIENT_MICROSECONDS[batch] / 1e6 + HANDLER) / SHARE
    processes = max(2, math.ceil(of_processes))  # two, so that one may be replaced
    shares = {name: share / servers for name, share in of_servers.items()}
    shares["the cores of the handlers"] = of_processes / processes
    memory = rate * BACKLOG * (READY_BYTES + BODY) + processes * WORKERS * batch * (LEASED_BYTES + BODY)
    connections = math.ceil(processes / servers) * CONNECTIONS
    return Need(servers, processes, connections, memory / servers / 1e9, max(shares, key=lambda each: shares[each]))


def table(rates: list[float]) -> str:
    """Return a line for each rate and batch, as Markdown."""
    lines = [
        "| messages/s | in a call | servers | processes | connections of a server | its memory | busiest |",
        "|---|---|---|---|---|---|---|",
    ]
    for rate in rates:
        for batch in SERVER_MICROSECONDS:
            each = need(rate, batch)
            lines.append(
                f"| {rate:,.0f} | {batch} | {each.servers:,} | {each.processes:,} | {each.connections:,} |"
                f" {each.gigabytes:.2f} GB | {each.first} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([float(rate) for rate in sys.argv[1:]] or [1e3, 1e5, 1e7]))
