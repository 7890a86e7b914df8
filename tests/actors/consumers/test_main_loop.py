from __future__ import annotations

from typing import Any

import pytest

from loopwarden.actors import AgentLoop, DLQConsumer, EvalLoop, EvalResult, MainLoop, Sample
from loopwarden.mailbox import DeadLetter, InMemoryMailbox
from loopwarden.testing import FakeClock


class Doubling(MainLoop[int, int]):
    def __init__(self, requests: InMemoryMailbox[int, int], responses: Any = None, **options: Any) -> None:
        super().__init__(requests, responses, **options)
        self.journal: list[str] = []

    def respond(self, request: int) -> int:
        self.journal.append(f"respond {request}")
        if request < 0:
            raise ValueError(request)
        return 2 * request

    def capture(self, request: int, reply: int | None) -> None:
        self.journal.append(f"capture {request} -> {reply}")

    def clean_up(self, request: int) -> None:
        self.journal.append(f"clean up {request}")


def test_a_reply_goes_where_the_request_says_or_else_to_the_responses() -> None:
    requests: InMemoryMailbox[int, int] = InMemoryMailbox("requests")
    asked: InMemoryMailbox[int, None] = InMemoryMailbox("asked")
    responses: InMemoryMailbox[int, None] = InMemoryMailbox("responses")
    requests.send(1, reply_to=asked)
    requests.send(2)

    Doubling(requests, responses).run(max_iterations=2)

    assert [message.body for message in asked.receive(max_messages=10)] == [2]
    assert [message.body for message in responses.receive(max_messages=10)] == [4]
    assert requests.approximate_count() == 0


def test_clean_up_runs_exactly_once_after_the_capture_even_when_the_request_fails() -> None:
    clock = FakeClock()
    requests: InMemoryMailbox[int, int] = InMemoryMailbox("requests", clock=clock)
    requests.send_many([1, -1])
    loop = Doubling(requests, clock=clock)

    loop.run(max_iterations=2)

    assert loop.journal == [
        "respond 1",
        "capture 1 -> 2",
        "clean up 1",
        "respond -1",
        "capture -1 -> None",
        "clean up -1",
    ]


def test_clean_up_runs_once_even_if_the_capture_raises() -> None:
    class Careless(Doubling):
        def capture(self, request: int, reply: int | None) -> None:
            raise OSError("disk full")

    loop = Careless(InMemoryMailbox("requests"))

    with pytest.raises(OSError, match="disk full"):
        loop.execute(1)

    assert loop.journal == ["respond 1", "clean up 1"]


def test_process_answers_one_request() -> None:
    assert Doubling(InMemoryMailbox("requests")).process(21) == 42
    assert AgentLoop is MainLoop


def test_an_eval_loop_scores_what_a_main_loop_answers_and_an_error_is_a_result() -> None:
    samples: InMemoryMailbox[Sample[int, int], EvalResult[int]] = InMemoryMailbox(
        "samples", body=Sample, reply=EvalResult
    )
    results: InMemoryMailbox[EvalResult[int], None] = InMemoryMailbox("results", body=EvalResult)
    asked: InMemoryMailbox[EvalResult[int], None] = InMemoryMailbox("asked", body=EvalResult)
    loop = EvalLoop(
        Doubling(InMemoryMailbox("requests")), lambda output, expected: float(output == expected), samples, results
    )
    samples.send(Sample(id="right", input=1, expected=2))
    samples.send(Sample(id="wrong", input=1, expected=3))
    samples.send(Sample(id="raises", input=-1, expected=0))
    samples.send(Sample(id="asked", input=2, expected=4), reply_to=asked)

    loop.run(max_iterations=4)

    scored = [message.body for message in results.receive(max_messages=10)]
    assert [(result.sample_id, result.score, result.error) for result in scored] == [
        ("right", 1.0, None),
        ("wrong", 0.0, None),
        ("raises", None, "ValueError(-1)"),
    ]
    assert [message.body.sample_id for message in asked.receive()] == ["asked"]
    assert loop.process(Sample(id="one", input=1, expected=2)) == EvalResult(sample_id="one", output=2, score=1.0)


@pytest.mark.parametrize(
    ("options", "culprit"),
    [({"loop": 3}, "loop must be a MainLoop"), ({"evaluator": 3}, "evaluator must"), ({"session": 3}, "session must")],
)
def test_an_eval_loop_refuses_what_it_cannot_use(options: dict[str, Any], culprit: str) -> None:
    good: dict[str, Any] = {"loop": Doubling(InMemoryMailbox("requests")), "evaluator": max, "session": None}

    with pytest.raises(TypeError, match=f"{culprit}.*, got 3"):
        EvalLoop(samples=InMemoryMailbox("samples", body=Sample, reply=EvalResult), **good | options)


def test_a_dlq_consumer_handles_letters_and_keeps_those_whose_handler_raises() -> None:
    clock = FakeClock()
    jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs", clock=clock)
    jobs.send_many(["good", "bad"])
    for message in jobs.receive(max_messages=2):
        message.dead_letter("for the test")
    seen: list[str | None] = []

    def handle(letter: DeadLetter[str]) -> None:
        seen.append(letter.body)
        if letter.body == "bad":
            raise ValueError

    DLQConsumer(jobs, handle, clock=clock).run(max_iterations=2)

    assert seen == ["good", "bad"]
    assert [letter.body for letter in jobs.dead_letters.peek()] == ["bad"]
