"""A tree in a program of asyncio, whose event loop it never blocks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import ChildSpec, HealthCheckRequest, Supervisor, Ticket
from loopwarden.errors import StartFailed, SupervisorGaveUp
from loopwarden.testing import ProbeLoop

if TYPE_CHECKING:
    from loopwarden.supervision import SupervisorRef

PATIENCE = 60.0  # real seconds; it only matters when a test fails


def probe(child: str) -> ChildSpec:
    return ChildSpec(id=child, start=ProbeLoop)


def refuse() -> Any:
    raise ConnectionError("away")


def test_tree_runs_in_the_block_and_is_gone_after_it() -> None:
    async def main() -> tuple[bool, bool]:
        async with Supervisor.open_async("root", children=[probe("a"), probe("b")]) as root:
            health = await root.child("a").send(HealthCheckRequest())
        return health.running, root.ended.is_ready()

    assert asyncio.run(main()) == (True, True)


def test_event_loop_goes_on_while_a_factory_and_a_stop_take_their_time() -> None:
    starts: Ticket[None] = Ticket()
    may_start: Ticket[None] = Ticket()

    def start() -> ProbeLoop:
        starts.complete(None)
        may_start.wait(PATIENCE)
        return ProbeLoop()

    async def main() -> None:
        async def let_it_start() -> None:
            await starts
            may_start.complete(None)

        helper = asyncio.create_task(let_it_start())
        async with Supervisor.open_async("root", children=[ChildSpec(id="a", start=start)]):
            await helper

    asyncio.run(main())


def test_child_that_cannot_be_started_is_raised_and_the_others_are_gone() -> None:
    loops: list[ProbeLoop] = []

    def start() -> ProbeLoop:
        loops.append(ProbeLoop())
        return loops[-1]

    async def main() -> None:
        children = [ChildSpec(id="a", start=start), ChildSpec(id="b", start=refuse)]
        async with Supervisor.open_async("root", children=children, backoff=None, intensity=0):
            raise AssertionError("it has started")

    with pytest.raises(StartFailed, match="away"):
        asyncio.run(main())
    assert [loop.running for loop in loops] == [False]


def test_error_in_the_block_is_raised_when_the_tree_is_gone() -> None:
    roots: list[SupervisorRef] = []

    async def main() -> None:
        async with Supervisor.open_async("root", children=[probe("a")]) as root:
            roots.append(root)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())
    assert roots[0].ended.is_ready()


def test_cancel_while_the_tree_starts_stops_it() -> None:
    starts: Ticket[None] = Ticket()
    may_start: Ticket[None] = Ticket()
    loops: list[ProbeLoop] = []

    def start() -> ProbeLoop:
        starts.complete(None)
        may_start.wait(PATIENCE)
        loops.append(ProbeLoop())
        return loops[-1]

    async def enter() -> None:
        async with Supervisor.open_async("root", children=[ChildSpec(id="a", start=start)]):
            raise AssertionError("it has started")

    async def main() -> bool:
        task = asyncio.create_task(enter())
        await starts
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_start.complete(None)
        return task.cancelled()

    assert asyncio.run(main())
    assert [loop.running for loop in loops] in ([], [False])


def test_cancel_of_the_block_is_raised_when_the_tree_is_gone() -> None:
    roots: list[SupervisorRef] = []

    async def main() -> None:
        is_in: asyncio.Event = asyncio.Event()

        async def stay() -> None:
            async with Supervisor.open_async("root", children=[probe("a")]) as root:
                roots.append(root)
                is_in.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(stay())
        await is_in.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert roots[0].ended.is_ready()


def test_tree_that_gives_up_is_told_at_the_end_of_the_block() -> None:
    def crash(_body: object) -> None:
        raise SystemExit("told to crash")

    async def main() -> None:
        loop = ProbeLoop(crash)
        async with Supervisor.open_async("root", children=[ChildSpec(id="a", start=lambda: loop)], intensity=0) as root:
            loop.feed("body")
            await root.ended

    with pytest.raises(SupervisorGaveUp):
        asyncio.run(main())
