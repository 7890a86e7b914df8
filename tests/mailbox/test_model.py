"""Any sequence of calls has the outcome that the rules give it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from loopwarden.mailbox import InMemoryMailbox, PostgresMailbox, RedisMailbox, SqliteMailbox
from loopwarden.testing.contracts._model import MAX_DELIVERIES, Box, MailboxMachine

if TYPE_CHECKING:
    from pathlib import Path

    from postgres_servers import PostgresServer
    from redis_servers import Server


def runs(count: int) -> settings:
    return settings(
        max_examples=count,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


class InMemory(MailboxMachine):
    def open_box(self) -> Box:
        return InMemoryMailbox("jobs", max_deliveries=MAX_DELIVERIES, clock=self.clock)


class WithRoundtrip(MailboxMachine):
    def open_box(self) -> Box:
        return InMemoryMailbox("jobs", max_deliveries=MAX_DELIVERIES, roundtrip=True, clock=self.clock)


@pytest.mark.parametrize(
    ("machine", "count"),
    [
        (InMemory, 200),
        (WithRoundtrip, 100),
        pytest.param(InMemory, 5_000, marks=pytest.mark.prove),
        pytest.param(WithRoundtrip, 1_000, marks=pytest.mark.prove),
    ],
)
def test_a_mailbox_in_memory_does_what_the_model_does(machine: type[MailboxMachine], count: int) -> None:
    run_state_machine_as_test(machine, settings=runs(count))


@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.prove)])
def test_a_mailbox_in_sqlite_does_what_the_model_does_even_if_its_process_dies(tmp_path: Path, count: int) -> None:
    files = itertools.count()

    class InSqlite(MailboxMachine):
        def __init__(self) -> None:
            self.path = tmp_path / f"{next(files)}.db"
            super().__init__()

        def open_box(self) -> Box:
            return SqliteMailbox(self.path, "jobs", max_deliveries=MAX_DELIVERIES, clock=self.clock)

    run_state_machine_as_test(InSqlite, settings=runs(count))


@pytest.mark.parametrize("count", [25, pytest.param(1_000, marks=pytest.mark.prove)])
def test_a_mailbox_in_redis_does_what_the_model_does_even_if_its_process_dies(server: Server, count: int) -> None:
    class InRedis(MailboxMachine):
        def __init__(self) -> None:
            server.call("FLUSHALL")
            super().__init__()

        def open_box(self) -> Box:
            return RedisMailbox(server.url, "jobs", max_deliveries=MAX_DELIVERIES, clock=self.clock)

    run_state_machine_as_test(InRedis, settings=runs(count))


@pytest.mark.parametrize("count", [5, pytest.param(500, marks=pytest.mark.prove)])
def test_a_mailbox_in_postgres_does_what_the_model_does_even_if_its_process_dies(
    postgres: PostgresServer, count: int
) -> None:
    names = itertools.count()

    class InPostgres(MailboxMachine):
        def __init__(self) -> None:
            self.name = f"jobs-{next(names)}"
            super().__init__()

        def open_box(self) -> Box:
            return PostgresMailbox(postgres.url, self.name, max_deliveries=MAX_DELIVERIES, clock=self.clock)

    run_state_machine_as_test(InPostgres, settings=runs(count))
