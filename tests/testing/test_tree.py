from __future__ import annotations

import pytest

from loopwarden import ChildSpec, HealthCheckRequest, MailboxLoop, ShutdownRequest, Supervisor, open_mailbox
from loopwarden.testing import Hold, ProbeLoop, Simulation, assert_tree, draw_tree


def media() -> Supervisor:
    return Supervisor(
        "media", children=[ChildSpec(id="resize", start=ProbeLoop), ChildSpec(id="crop", start=ProbeLoop)]
    )


def test_assert_tree_compares_ids_states_and_levels() -> None:
    with Simulation(), Supervisor.open("app", children=[ChildSpec(id="media", start=media)]) as app:
        app.spawn(ChildSpec(id="mail", start=ProbeLoop)).send(ShutdownRequest()).wait()

        assert_tree(
            app,
            """
            app
              media: up
                resize: up
                crop: up
              mail: down
            """,
        )


def test_assert_tree_shows_a_difference_line_by_line() -> None:
    with Simulation(), Supervisor.open("media", children=[ChildSpec(id="resize", start=ProbeLoop)]) as media:
        with pytest.raises(AssertionError) as raised:
            assert_tree(media, "media\n  resize: down\n  crop: up")

        told = str(raised.value).splitlines()
        assert "  media" in told
        assert "-   resize: down" in told
        assert "+   resize: up" in told
        assert "-   crop: up" in told


def test_assert_tree_sees_a_child_that_waits_for_its_restart() -> None:
    def crash(_: object) -> None:
        raise SystemExit("crash")

    with Simulation() as simulation:
        loop = ProbeLoop(crash)
        with Supervisor.open("media", children=[ChildSpec(id="resize", start=lambda: loop)]) as media:
            events = media.subscribe()
            loop.feed("a body")
            events.wait_for("restarting")

            assert_tree(media, "media\n  resize: restarting")
            assert simulation.now == 1_000.0


def test_draw_tree_shows_what_each_loop_has_in_hand() -> None:
    with Simulation() as simulation, Hold() as hold:
        jobs = open_mailbox("memory://jobs", body=str)
        specs = [
            ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda _: hold())),
            ChildSpec(id="idle", start=ProbeLoop),
        ]
        with Supervisor.open("media", children=specs) as media:
            message_id = jobs.send("a picture")
            simulation.advance(0)

            drawn = draw_tree(media)
            hold.release()

        assert drawn.splitlines()[0] == "media"
        assert sorted(drawn.splitlines()[1:]) == [
            "  idle: up, running",
            f"  resize: up, running, with {message_id} (delivery 1) in hand",
        ]


def test_draw_tree_sends_no_requests() -> None:
    with Simulation() as simulation, Supervisor.open("app", children=[ChildSpec(id="media", start=media)]) as app:
        app.send(HealthCheckRequest()).wait()
        steps = simulation.steps

        drawn = draw_tree(app)

        assert drawn.splitlines()[:2] == ["app", "  media: up"]
        assert sorted(drawn.splitlines()[2:]) == ["    crop: up, running", "    resize: up, running"]
        assert simulation.now == 1_000.0
        assert simulation.steps - steps < 20
