"""An evaluation goes on where it was, and each sample has one result."""

from __future__ import annotations

import collections
import math
import random
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from loopwarden import ChildSpec, Supervisor, Ticket
from loopwarden.actors import (
    EVAL_PROGRESS,
    EvalLoop,
    EvalProgress,
    EvalResult,
    MainLoop,
    Sample,
    SampleScored,
    Session,
    Slice,
)
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox
from loopwarden.testing import FakeClock, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loopwarden.actors import ControlRef

#: Samples in an evaluation, for each time that it is killed.
PER_KILL = 20
#: How many more runs a child may make before it is dead: the kill comes in the middle of one, or between two.
AHEAD = 3


class Doubling(MainLoop[int, int]):
    def __init__(self) -> None:
        super().__init__(InMemoryMailbox("requests"))
        self.ran: list[int] = []

    def respond(self, request: int) -> int:
        self.ran.append(request)
        return 2 * request


def equal(output: int, expected: int) -> float:
    return float(output == expected)


def evaluation(
    session: ControlRef, samples: InMemoryMailbox[Any, Any], results: InMemoryMailbox[Any, Any], **options: Any
) -> tuple[Doubling, EvalLoop[int, int]]:
    answers = Doubling()
    return answers, EvalLoop(answers, equal, samples, results, session=session, **options)


def test_a_sample_that_has_a_result_is_not_run_again_and_its_result_is_sent_again() -> None:
    samples: InMemoryMailbox[Any, Any] = InMemoryMailbox("samples", body=Sample, reply=EvalResult)
    results: InMemoryMailbox[Any, Any] = InMemoryMailbox("results", body=EvalResult)
    asked: InMemoryMailbox[Any, Any] = InMemoryMailbox("asked", body=EvalResult)
    with Session.open("eval", [EVAL_PROGRESS]) as session:
        session.dispatch(SampleScored(EvalResult(sample_id="known", output=7, score=0.5))).wait(60)
        answers, loop = evaluation(session, samples, results)
        samples.send(Sample(id="known", input=1, expected=2))
        samples.send(Sample(id="new", input=2, expected=4))
        samples.send(Sample(id="known", input=1, expected=2), reply_to=asked)

        loop.run(max_iterations=3)

        scored = [message.body for message in results.receive(max_messages=10)]
        assert answers.ran == [2]
        assert [(result.sample_id, result.output, result.score) for result in scored] == [
            ("known", 7, 0.5),
            ("new", 4, 1.0),
        ]
        assert [message.body.score for message in asked.receive()] == [0.5]
        assert session.state[EvalProgress].results == {result.sample_id: result for result in scored}
        assert samples.approximate_count() == 0


def test_eval_loop_keeps_the_first_of_two_results_of_a_sample() -> None:
    samples: InMemoryMailbox[Any, Any] = InMemoryMailbox("samples", body=Sample, reply=EvalResult)
    results: InMemoryMailbox[Any, Any] = InMemoryMailbox("results", body=EvalResult)
    with Session.open("eval", [EVAL_PROGRESS]) as session:

        class Overtaken(Doubling):
            def respond(self, request: int) -> int:
                session.dispatch(SampleScored(EvalResult(sample_id="one", output=99, score=0.0))).wait(60)
                return super().respond(request)

        samples.send(Sample(id="one", input=1, expected=2))
        EvalLoop(Overtaken(), equal, samples, results, session=session).run(max_iterations=1)

        assert [message.body.output for message in results.receive()] == [99]


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with Simulation(seed=7) as simulation:
        yield simulation


@pytest.mark.usefixtures("simulation")
def test_eval_loop_whose_session_is_away_costs_no_deliveries_and_runs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples: InMemoryMailbox[Any, Any] = InMemoryMailbox("samples", body=Sample, reply=EvalResult)
    results: InMemoryMailbox[Any, Any] = InMemoryMailbox("results", body=EvalResult)
    session = Session.open("eval", [EVAL_PROGRESS], journal=tmp_path / "eval.db")
    session.close(timeout=5)
    samples.send(Sample(id="one", input=1, expected=2))
    answers, loop = evaluation(session, samples, results)

    loop.run(max_iterations=20, wait_time_seconds=0)

    assert answers.ran == []
    assert loop.progress[0].processed == 0
    assert samples.approximate_count() == 1
    assert samples.dead_letters.peek() == []
    assert results.approximate_count() == 0
    assert [text for text in caplog.messages if "session unavailable" in text] == [
        "session unavailable, samples of 'samples' wait for it: Session 'eval' not found: it has ended"
    ]
    [message] = samples.receive()
    assert message.delivery_count == 1
    message.put_back()

    with Session.open("eval", [EVAL_PROGRESS], journal=tmp_path / "eval.db") as again:
        answers, loop = evaluation(again, samples, results)
        loop.run(max_iterations=1, wait_time_seconds=0)
        assert list(again.state[EvalProgress].results) == ["one"]
    assert samples.approximate_count() == 0


def test_eval_loop_keeps_an_error_as_a_result(tmp_path: Path) -> None:
    samples: InMemoryMailbox[Any, Any] = InMemoryMailbox("samples", body=Sample, reply=EvalResult)
    journal = tmp_path / "eval.db"
    samples.send(Sample(id="raises", input=1, expected=2))
    with Session.open("eval", [EVAL_PROGRESS], journal=journal) as session:
        EvalLoop(Doubling(), lambda output, expected: 1 / 0, samples, session=session).run(max_iterations=1)

    with Session.open("eval", [EVAL_PROGRESS], journal=journal) as session:
        assert session.state[EvalProgress].results == {
            "raises": EvalResult[Any](sample_id="raises", error="ZeroDivisionError('division by zero')")
        }


def test_eval_loop_that_waits_for_its_session_is_woken_by_a_stop(clock: FakeClock) -> None:
    samples: InMemoryMailbox[Any, Any] = InMemoryMailbox("samples", body=Sample, reply=EvalResult)
    session = Session.open("eval", [EVAL_PROGRESS])
    session.close(timeout=5)
    samples.send(Sample(id="one", input=1, expected=2))
    _, loop = evaluation(session, samples, samples)
    over: Ticket[None] = Ticket()

    def run() -> None:
        loop.run()
        over.complete(None)

    clock.blocking.start_thread(run, "away")
    clock.advance(60)

    loop.shutdown_nowait()

    over.wait(60)
    assert samples.approximate_count() == 1


class Answer(BaseModel):
    text: str


class UnspeakableError(Exception):
    def __repr__(self) -> str:
        return "\ud83d"


def scoring(score: Any) -> Callable[[Any, Any], Any]:
    def evaluator(output: Any, expected: Any) -> Any:
        if isinstance(score, Exception):
            raise score
        return score

    return evaluator


@pytest.mark.parametrize(
    ("output", "score", "culprit"),
    [
        (2, "high", "score.*valid number"),
        (2, math.nan, "does not survive JSON"),
        (math.inf, 1.0, "does not survive JSON"),
        (object(), 1.0, "Unable to serialize unknown type"),
        ("\ud83d", 1.0, "cannot be written as JSON"),
        (2, UnspeakableError(), r"\\ud83d"),
    ],
    ids=["score", "nan", "inf", "object", "surrogate", "repr"],
)
def test_eval_loop_runs_a_sample_once_whose_result_the_session_cannot_keep(
    tmp_path: Path, output: Any, score: Any, culprit: str
) -> None:
    class Odd(Doubling):
        def respond(self, request: int) -> Any:
            super().respond(request)
            return output

    clock = FakeClock()
    samples: InMemoryMailbox[Any, Any] = InMemoryMailbox("samples", body=Sample, reply=EvalResult, clock=clock)
    results: InMemoryMailbox[Any, Any] = InMemoryMailbox("results", body=EvalResult, clock=clock)
    samples.send(Sample(id="odd", input=1, expected=2))
    answers, journal = Odd(), tmp_path / "eval.db"
    with Session.open("eval", [EVAL_PROGRESS], journal=journal) as session:
        loop = EvalLoop(answers, scoring(score), samples, results, session=session, clock=clock)
        loop.run(max_iterations=1, wait_time_seconds=0)
        before = session.state[EvalProgress]

    assert answers.ran == [1]
    assert samples.approximate_count() == 0
    [sent] = results.receive()
    assert (sent.body.output, sent.body.score) == (None, None)
    assert re.search(culprit, sent.body.error, re.DOTALL)
    with Session.open("eval", [EVAL_PROGRESS], journal=journal) as session:
        assert session.state[EvalProgress] == before == EvalProgress({"odd": sent.body})


@pytest.mark.parametrize(
    ("output", "kept"),
    [(Answer(text="yes"), {"text": "yes"}), ((1, 2), [1, 2]), ({1: 2}, {"1": 2})],
    ids=["model", "tuple", "keys"],
)
def test_an_output_is_plain_data_in_the_session_before_a_restart_as_after_it(
    tmp_path: Path, output: Any, kept: object
) -> None:
    class Rich(Doubling):
        def respond(self, request: int) -> Any:
            return output

    samples: InMemoryMailbox[Any, Any] = InMemoryMailbox("samples", body=Sample, reply=EvalResult)
    samples.send(Sample(id="rich", input=1, expected=2))
    journal = tmp_path / "eval.db"
    with Session.open("eval", [EVAL_PROGRESS], journal=journal) as session:
        EvalLoop(Rich(), lambda output, expected: 1.0, samples, session=session).run(max_iterations=1)
        before = session.state[EvalProgress]

    assert before.results["rich"] == EvalResult[Any](sample_id="rich", output=kept, score=1.0)
    with Session.open("eval", [EVAL_PROGRESS], journal=journal) as session:
        assert session.state[EvalProgress] == before


def test_a_supervised_session_is_taken_by_its_stable_ref(tmp_path: Path) -> None:
    spec = ChildSpec(id="eval", start=lambda: Session("eval", [EVAL_PROGRESS], journal=tmp_path / "eval.db"))
    samples: InMemoryMailbox[Any, Any] = InMemoryMailbox("samples", body=Sample, reply=EvalResult)
    results: InMemoryMailbox[Any, Any] = InMemoryMailbox("results", body=EvalResult)
    samples.send(Sample(id="one", input=1, expected=2))
    supervisor = Supervisor.start("root", children=[spec])
    session = supervisor.child("eval")
    assert session.ready.wait_ready(60)
    _, loop = evaluation(session, samples, results)

    loop.run(max_iterations=1)

    assert [message.body.score for message in results.receive()] == [1.0]
    supervisor.stop(timeout=60)


def test_a_session_without_the_slice_is_refused_before_anything_is_run() -> None:
    with (
        Session.open("eval", [Slice(SampleScored(EvalResult(sample_id="", score=0.0)))]) as session,
        pytest.raises(ValueError, match="Session 'eval' has no EvalProgress: give EVAL_PROGRESS"),
    ):
        evaluation(
            session,
            InMemoryMailbox("samples", body=Sample, reply=EvalResult),
            InMemoryMailbox("results", body=EvalResult),
        )


# Evaluates until nothing is left. Writes a line when a sample is run, so that its killer knows how far it is.
# Its time stands still, so that no lease ends while it lives, and is later than all leases of the lives before.
CHILD = """
import os, sys
from loopwarden.actors import EVAL_PROGRESS, EvalLoop, EvalProgress, EvalResult, MainLoop, Sample, Session
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox
from loopwarden.testing import FakeClock

mail, journal, log, life = sys.argv[1:]
clock = FakeClock().__enter__()
clock.advance(1000 * int(life))
runs = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

class Doubling(MainLoop[int, int]):
    def respond(self, request):
        os.read(0, 1)  # a permit, or the end: then there is no limit
        os.write(runs, b"%d\\n" % request)
        os.write(1, b".")
        return 2 * request

samples = SqliteMailbox(mail, "samples", body=Sample[int, int], reply=EvalResult[int], max_deliveries=None)
results = SqliteMailbox(mail, "results", body=EvalResult[int])
with Session.open("eval", [EVAL_PROGRESS], journal=journal, snapshot_every=30) as session:
    loop = EvalLoop(
        Doubling(InMemoryMailbox("requests")),
        lambda output, expected: float(output == expected),
        samples,
        results,
        session=session,
        visibility_timeout=300,
    )
    while samples.approximate_count():
        loop.run(max_iterations=1)
samples.close()
results.close()
os.write(1, b"e")
"""


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 3), *(pytest.param(seed, 10, marks=pytest.mark.prove) for seed in range(2, 7))]
)
def test_an_evaluation_that_is_killed_again_and_again_has_one_result_of_each_sample(
    tmp_path: Path, seed: int, kills: int
) -> None:
    count = PER_KILL * kills
    mail, journal, log = tmp_path / "mail.db", tmp_path / "eval.db", tmp_path / "runs"
    samples: SqliteMailbox[Any, Any] = SqliteMailbox(mail, "samples", body=Sample[int, int], clock=FakeClock())
    samples.send_many([Sample[int, int](id=f"s{number}", input=number, expected=2 * number) for number in range(count)])
    dice = random.Random(seed)

    for life in range(kills):
        run_child(mail, journal, log, life, dice.randrange(1, PER_KILL - AHEAD), ahead=dice.randint(1, AHEAD))
    run_child(mail, journal, log, kills, None)

    with Session.open("eval", [EVAL_PROGRESS], journal=journal) as session:
        progress = session.state[EvalProgress].results
    runs = collections.Counter(log.read_text("utf-8").split())
    mailbox: SqliteMailbox[Any, Any] = SqliteMailbox(mail, "results", body=EvalResult[int])
    sent = [message.body for _ in range(3 * count) for message in mailbox.receive(max_messages=100)]
    assert samples.approximate_count() == 0
    assert samples.dead_letters.peek(10) == []
    # In the session: one result of each, and one event for each, so that none was scored and then scored anew.
    assert {sample: result.score for sample, result in progress.items()} == {f"s{n}": 1.0 for n in range(count)}
    assert session.sequence == count
    # What was run twice was in hand when its process died: one sample for each kill at most.
    assert set(runs) == {str(number) for number in range(count)}
    assert sum(runs.values()) <= count + kills
    # In the mailbox: each at least once, one more for each kill at most, and always the same.
    assert len(sent) <= count + kills
    assert {result.sample_id for result in sent} == set(progress)
    assert all(result.output == progress[result.sample_id].output for result in sent)
    samples.close()
    mailbox.close()


def run_child(mail: Path, journal: Path, log: Path, life: int, runs: int | None, *, ahead: int = 0) -> None:
    """Let a process evaluate, and kill it after so many runs, or a few more; None lets it come to its end."""
    command = [sys.executable, "-P", "-c", CHILD, str(mail), str(journal), str(log), str(life)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if runs is None:
                process.stdin.close()
                assert process.stdout.read().endswith(b"e")
            else:
                process.stdin.write(b"." * (runs + ahead))
                assert [process.stdout.read(1) for _ in range(runs)] == [b"."] * runs
        finally:
            process.kill()
