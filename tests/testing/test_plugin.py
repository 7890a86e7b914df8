from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.pytester import RunResult

#: The first test of a new user.
FIRST_TEST = """
from loopwarden import ChildSpec, HealthCheckRequest, MailboxLoop


def test_picture_that_crashes_its_loop_is_resized_by_the_next_one(warden, mailbox):
    def resize(message):
        if message.delivery_count == 1:
            raise SystemExit("crash")

    loop = warden.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(mailbox, resize)))
    mailbox.acknowledged(mailbox.send("a picture")).wait()

    assert loop.send(HealthCheckRequest()).wait().restarts == 1
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    # Each takes a while to import.
    others = ("randomly", "xdist", "cacheprovider", "timeout", "valkey", "hypothesispytest", "pytest_cov")
    options = " ".join(f"-p no:{name}" for name in others)
    pytester.makeini(f"[pytest]\naddopts = {options}\nloopwarden_hang_timeout = 60\n")
    return pytester


def run(project: pytest.Pytester, source: str, *args: str) -> RunResult:
    project.makepyfile(textwrap.dedent(source))
    return project.runpytest_subprocess(*args, timeout=120)


def test_plugin_makes_the_first_test_of_a_new_user_short_and_green(project: pytest.Pytester) -> None:
    lines = [line for line in FIRST_TEST.splitlines() if line.strip()]

    result = run(project, FIRST_TEST, "-W", "error")

    result.assert_outcomes(passed=1)
    assert len(lines) <= 12
    assert [line.split()[1] for line in lines if "import" in line] == ["loopwarden"]


@pytest.mark.parametrize("fixtures", ["mailbox, warden", "warden, mailbox", "fake_clock, warden, mailbox"])
def test_plugin_ends_what_a_test_uses_in_any_order(fixtures: str, project: pytest.Pytester) -> None:
    result = run(
        project,
        f"""
        from loopwarden import ChildSpec, MailboxLoop, wait_all

        def test_five_pictures({fixtures}):
            warden.spawn(ChildSpec(id="loop", start=lambda: MailboxLoop(mailbox, lambda message: None)))
            wait_all([mailbox.acknowledged(mailbox.send("a picture")) for _ in range(5)], 60)
        """,
        "-W",
        "error",
    )

    result.assert_outcomes(passed=1)


def test_plugin_gives_a_probe_and_simulated_time(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import pytest

        def test_probe(probe, simulation):
            simulation.call_later(30, lambda: probe.ref.tell("hello"))
            assert probe.expect("hello") == "hello"
            probe.expect_none(86_400)
            assert simulation.now == 1_000 + 30 + 86_400
            assert simulation.seed == 5

        @pytest.mark.simulation(7)
        def test_seed_by_position(simulation):
            assert simulation.seed == 7

        @pytest.mark.simulation(seed="any text")
        def test_seed_by_name(simulation):
            assert simulation.seed == "any text"
        """,
        "--strict-markers",
        "-o",
        "loopwarden_seed=5",
    )

    result.assert_outcomes(passed=3)


def test_plugin_lets_a_test_that_leaves_something_behind_fail(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        from loopwarden import LoopActor, MailboxLoop, ShutdownRequest
        from loopwarden.mailbox import InMemoryMailbox
        from loopwarden.testing import Hold, ProbeLoop

        kept = []

        def test_thread(simulation):
            mailbox = InMemoryMailbox("of its own")
            LoopActor.start(MailboxLoop(mailbox, lambda message: None), name="forgotten")  # line 9

        def test_lease(mailbox):
            mailbox.send("a picture")
            kept.extend(mailbox.receive())  # line 13

        def test_ticket(simulation):
            loop = ProbeLoop(Hold())
            ref = LoopActor.start(loop, name="held")
            loop.feed("a body")
            kept.append(ref.send(ShutdownRequest(timeout=3600)))

        def test_clean(simulation, mailbox, probe):
            pass
        """,
    )

    result.assert_outcomes(passed=4, errors=3)
    result.stdout.fnmatch_lines(
        [
            "*LeakError: the test has left behind:",
            "*- thread forgotten-*, started at *test_plugin_lets_a_test_that_leaves_something_behind_fail.py:9, in *",
            "*- actor *forgotten*",
            "*- lease of 'mailbox': <Message *, delivery 1>, received at *.py:13, in test_lease*",
            "*- thread held-*",
            "*- ticket for ShutdownRequest to *held*, which was never answered*",
        ]
    )


def test_plugin_lets_a_test_of_threads_that_truly_race_fail_for_its_leaks(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        from loopwarden import LoopActor
        from loopwarden.testing import ProbeLoop, _leaks

        _leaks.LAST_GRACE = 0.1

        def test_thread(fake_clock):
            LoopActor.start(ProbeLoop(), name="forgotten")

        def test_clean(fake_clock):
            pass
        """,
    )

    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*- thread forgotten-*", "*- actor *forgotten*"])


@pytest.mark.parametrize(
    "fixtures",
    [
        "mailbox",
        "mailbox, warden",
        "warden, mailbox",
        "mailbox, simulation",
        "fake_clock, mailbox",
        "mailbox, fake_clock",
    ],
)
def test_plugin_lets_a_test_fail_that_forgets_a_loop_on_its_mailbox(fixtures: str, project: pytest.Pytester) -> None:
    result = run(
        project,
        f"""
        from loopwarden import LoopActor, MailboxLoop
        from loopwarden.testing import _leaks

        _leaks.LAST_GRACE = 0.1

        def test_loop({fixtures}):
            LoopActor.start(MailboxLoop(mailbox, print), name="forgotten")
            mailbox.acknowledged(mailbox.send("a picture")).wait()

        def test_clean({fixtures}):
            pass
        """,
    )

    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*LeakError: the test has left behind:", "*- thread forgotten*", "*- actor *forgotten*"]
    )


def test_plugin_does_not_blame_a_test_for_what_others_have_left(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import pykka, pytest

        class Older(pykka.ThreadingActor):
            pass

        @pytest.fixture(scope="session", autouse=True)
        def older():
            ref = Older.start()
            yield
            ref.stop()

        def test_failing(warden, mailbox):
            assert False, "for another reason"

        def test_clean(simulation, warden, mailbox):
            pass

        def test_clean_too(fake_clock, warden, mailbox):
            pass
        """,
    )

    result.assert_outcomes(passed=2, failed=1)


@pytest.mark.parametrize("fixtures", ["warden, mailbox", "fake_clock, warden, mailbox"])
def test_plugin_ends_a_test_that_hangs_with_the_tree_and_the_stacks(fixtures: str, project: pytest.Pytester) -> None:
    result = run(
        project,
        f"""
        import threading
        from loopwarden import ChildSpec, MailboxLoop

        never = threading.Semaphore(0)

        def hang_for_ever(message):
            never.acquire(timeout=100)

        def test_hanging({fixtures}):
            warden.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(mailbox, hang_for_ever)))
            mailbox.acknowledged(mailbox.send("a picture")).wait()

        def test_next_one(simulation):
            never.release()
        """,
        "-o",
        "loopwarden_hang_timeout=0.5",
    )

    result.assert_outcomes(passed=1, failed=1)
    assert result.duration < 90
    result.stdout.fnmatch_lines(
        [
            "*HangError: the test has not ended after 0.5 real seconds",
            "*the tree:",
            "*warden",
            "*resize: up, running, with * (delivery 1) in hand",
            "*threads:",
            "*in hang_for_ever",
        ]
    )


def test_plugin_ends_a_test_whose_end_hangs(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import threading
        from loopwarden import ChildSpec
        from loopwarden.testing import ProbeLoop, _leaks

        _leaks.LAST_GRACE = 0.1
        never = threading.Semaphore(0)

        def test_hanging_at_its_end(fake_clock, warden):
            loop = ProbeLoop(lambda _: never.acquire(timeout=100))
            warden.spawn(ChildSpec(id="resize", start=lambda: loop))
            loop.feed("a body")

        def test_next_one():
            never.release()
        """,
        "-o",
        "loopwarden_hang_timeout=0.5",
    )

    result.assert_outcomes(passed=2, errors=1)
    assert result.duration < 90
    result.stdout.fnmatch_lines(["*HangError: the test has not ended after 0.5 real seconds", "*resize: *"])


def test_plugin_ends_interleavings_that_hang_after_its_setting(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import threading
        from loopwarden.testing import interleavings

        @interleavings(5)
        def test_hanging(simulation):
            threading.Semaphore(0).acquire(timeout=100)
        """,
        "-o",
        "loopwarden_hang_timeout=0.5",
    )

    result.assert_outcomes(failed=1)
    assert result.duration < 90
    result.stdout.fnmatch_lines(["*HangError: the test has not ended after 0.5 real seconds"])


def test_plugin_leaves_a_project_alone_that_uses_none_of_it(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import signal, sys
        import pytest

        @pytest.fixture
        def mailbox():
            return "mine"

        @pytest.fixture
        def probe(mailbox):
            return f"of {mailbox}"

        @pytest.fixture
        def _time():
            return "mine too"

        def test_own_fixtures(mailbox, probe, _time):
            assert (mailbox, probe, _time) == ("mine", "of mine", "mine too")
            assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL

        def test_nothing_is_imported():
            names = {name.partition(".")[0] for name in sys.modules}
            assert not names & {"loopwarden", "pykka", "pydantic"}
            assert "_loopwarden_pytest" in names
        """,
        "-W",
        "error",
    )

    result.assert_outcomes(passed=2)


def test_plugin_does_not_guard_another_fixture_of_the_same_name(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import signal
        import loopwarden.testing
        import pytest

        @pytest.fixture
        def mailbox():
            return "mine"

        def test_own_fixture(mailbox):
            assert mailbox == "mine"
            assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
        """,
    )

    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("failure", ["assert warden is None", "pytest.fail('no')", "pytest.raises(KeyError, list)"])
def test_plugin_tells_the_seed_of_a_test_that_fails_in_a_simulation(failure: str, project: pytest.Pytester) -> None:
    result = run(
        project,
        f"""
        import pytest

        @pytest.mark.simulation(11)
        def test_failing(warden):
            warden.children()
            {failure}
        """,
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*in the simulation of seed 11"])
    result.stdout.no_fnmatch_line("*the last * steps:*")


@pytest.mark.parametrize(
    ("failure", "outcomes", "told"),
    [
        ("Ticket().wait()", {"failed": 1}, "E * loopwarden.testing.DeadlockError: *"),
        ("threading.Semaphore(0).acquire(timeout=60)", {"failed": 1}, "E * loopwarden.testing.HangError: *"),
        ("simulation.start_thread(lambda: 1 / 0, 'divider')", {"passed": 1, "errors": 1}, "E * ZeroDivisionError: *"),
    ],
)
def test_plugin_tells_the_story_of_a_test_that_fails_for_its_threads(
    failure: str, outcomes: dict[str, int], told: str, project: pytest.Pytester
) -> None:
    result = run(
        project,
        f"""
        import threading
        from loopwarden import Ticket

        def test_failing(simulation):
            Ticket().complete("something to tell")
            {failure}
        """,
        "-o",
        "loopwarden_hang_timeout=0.5",
    )

    result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines([told, "*in the simulation of seed 0:", "*the last * of * steps:"])
    result.stdout.no_fnmatch_line("*bin/pytest*")


def test_plugin_tells_no_story_of_a_test_that_is_skipped(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import pytest

        def test_skipped(warden):
            pytest.skip("not today")

        @pytest.mark.xfail(strict=True)
        def test_expected(warden, mailbox):
            assert False
        """,
    )

    result.assert_outcomes(skipped=1, xfailed=1)


def test_plugin_refuses_a_simulation_in_a_simulation(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import pytest
        from loopwarden.testing import Simulation, interleavings

        @pytest.fixture
        def box(mailbox):
            return mailbox

        @interleavings(2)
        def test_decorated(box, simulation):
            pass
        """,
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*there is a simulation around this one already*"])


@pytest.mark.parametrize(
    "fixtures", ["fake_clock, simulation", "simulation, fake_clock", "warden, simulation, fake_clock"]
)
def test_plugin_refuses_two_times_in_one_test(fixtures: str, project: pytest.Pytester) -> None:
    result = run(project, f"def test_both({fixtures}): pass")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*a test has one time: ask for the fixture `simulation` or for `fake_clock`, not both"]
    )


def test_plugin_takes_another_fake_clock_for_no_time_of_ours(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        import pytest
        from loopwarden.clock import current_clock

        @pytest.fixture
        def fake_clock():
            return "mine"

        def test_own_clock(warden, fake_clock, simulation):
            assert fake_clock == "mine"
            assert current_clock() is simulation
        """,
    )

    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("marker", ["simulation", "simulation()", "simulation(1, 2)", "simulation(speed=7)"])
def test_plugin_says_that_its_marker_needs_a_seed(marker: str, project: pytest.Pytester) -> None:
    result = run(project, f"import pytest\n\n@pytest.mark.{marker}\ndef test_seed(simulation): pass")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the marker needs one seed, a number or a text: @pytest.mark.simulation(7)"])


def test_plugin_says_what_it_has(project: pytest.Pytester) -> None:
    markers = project.runpytest_subprocess("--markers", timeout=120)
    fixtures = project.runpytest_subprocess("--fixtures", timeout=120)

    markers.stdout.fnmatch_lines(["*simulation(seed): the seed of Loopwarden's fixture*"])
    fixtures.stdout.fnmatch_lines_random(
        ["warden -- *", "mailbox -- *", "probe -- *", "simulation -- *", "fake_clock -- *"]
    )
    fixtures.stdout.no_fnmatch_line("*_loopwarden_time*")
