"""Runs loops as the specification of the lifecycle shows it: ``python runs_the_seed.py <how> <file of mailboxes>``.

Says what it has in hand, and completes it when a byte comes on standard input.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from loopwarden import LoopGroup, MainLoop, ShutdownCoordinator
from loopwarden.actors import EvalLoop, EvalResult, Sample
from loopwarden.mailbox import SqliteMailbox


def say(text: str) -> None:
    print(text, flush=True)


def adapter(request: str) -> str:
    coordinator = ShutdownCoordinator.get()
    assert coordinator is not None, "it is installed before anything runs"
    coordinator.register(lambda: say("told"))  # after what stops the loop, so that is called first
    say(f"in hand {request}")
    os.read(0, 1)
    return request.upper()


def at_once(request: str) -> str:
    say(f"in hand {request}")
    return request.upper()


class MyMainLoop(MainLoop[str, str]):
    def __init__(
        self, adapter: Any, requests: SqliteMailbox[str, str], responses: SqliteMailbox[str, Any] | None = None
    ) -> None:
        super().__init__(requests, responses)
        self._adapter = adapter

    def respond(self, request: str) -> str:
        answer: str = self._adapter(request)
        return answer


def scorer(output: str, expected: str) -> float:
    return float(output == expected)


def single(path: str) -> None:
    requests: SqliteMailbox[str, str] = SqliteMailbox(path, "requests")
    responses: SqliteMailbox[str, Any] = SqliteMailbox(path, "responses")
    coordinator = ShutdownCoordinator.install()

    loop = MyMainLoop(adapter=adapter, requests=requests, responses=responses)
    coordinator.register(loop.shutdown)

    loop.run()


def several(path: str) -> None:
    requests: SqliteMailbox[str, str] = SqliteMailbox(path, "requests")
    responses: SqliteMailbox[str, Any] = SqliteMailbox(path, "responses")
    samples: SqliteMailbox[Sample[str, str], EvalResult[str]] = SqliteMailbox(path, "samples", body=Sample[str, str])
    results: SqliteMailbox[EvalResult[str], Any] = SqliteMailbox(path, "results", body=EvalResult[str])
    main_loop = MyMainLoop(adapter=at_once, requests=requests, responses=responses)
    eval_loop = EvalLoop(loop=main_loop, evaluator=scorer, samples=samples, results=results)

    group = LoopGroup(loops=[main_loop, eval_loop])
    group.run()


def group_of_one(path: str, **options: Any) -> None:
    requests: SqliteMailbox[str, str] = SqliteMailbox(path, "requests")
    responses: SqliteMailbox[str, Any] = SqliteMailbox(path, "responses")
    loop = MyMainLoop(adapter=adapter, requests=requests, responses=responses)

    group = LoopGroup(loops=[loop], **options)
    group.run()

    assert group.report is not None, "it has ended"
    say(f"{group.report.reason}, {group.report.exit_code.name}")


def patient_group(path: str) -> None:
    group_of_one(path, shutdown_timeout=86_400.0)


if __name__ == "__main__":
    ways = {"single": single, "several": several, "group": group_of_one, "patient group": patient_group}
    ways[sys.argv[1]](sys.argv[2])
