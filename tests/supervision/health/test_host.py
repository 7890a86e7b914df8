"""Probes are answered where they are asked from, and say nothing that not everybody may know."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import ChildSpec, MailboxLoop
from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.supervision import Probe, Prober, Service, Supervisor
from loopwarden.supervision.health._host import VARIABLE, find_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loopwarden import Message, SupervisorRef
    from loopwarden.testing import Simulation

NOWHERE = Path("/nowhere")
EVERYWHERE = {"::", "0.0.0.0"}  # noqa: S104  where a pod listens


def test_host_that_is_given_stays() -> None:
    assert find_host("192.0.2.7", {VARIABLE: "10.0.0.1"}, NOWHERE) == ("192.0.2.7", "as health_host says")


def test_host_is_this_machine_outside_of_a_pod() -> None:
    found = find_host(None, {}, NOWHERE)

    assert found == ("127.0.0.1", "only this machine, because this is not a pod of Kubernetes")


def test_host_is_this_machine_if_it_cannot_be_told_whether_it_is_a_pod() -> None:
    no_path = Path("/" + 300 * "x")  # as a folder of root's, into which this user may not look

    assert find_host(None, {}, no_path).host == "127.0.0.1"


@pytest.mark.parametrize(
    ("given", "environ", "is_account", "why"),
    [
        (None, {VARIABLE: "10.0.0.1"}, False, f"because {VARIABLE} is set"),
        (None, {}, True, "because there is"),
        ("", {}, False, "as health_host says"),
    ],
    ids=["variable", "folder", "empty"],
)
def test_host_is_all_interfaces_in_a_pod_and_if_it_is_asked_for(
    given: str | None, environ: Mapping[str, str], is_account: bool, why: str, tmp_path: Path
) -> None:
    host, reason = find_host(given, environ, tmp_path if is_account else NOWHERE)

    assert host in EVERYWHERE
    assert reason.startswith("all interfaces, ")
    assert why in reason


def test_service_in_a_pod_listens_on_all_interfaces_by_ipv4_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "10.0.0.1")

    service = Service(Supervisor("tree"), health_port=0)

    assert service.probes is not None
    try:
        assert service.probes.host in EVERYWHERE
        with socket.create_connection(("127.0.0.1", service.probes.port), timeout=60) as client:
            assert client.getpeername()[1] == service.probes.port
    finally:
        service.probes.close()


@pytest.mark.parametrize("host", [7, b"::", False])
def test_service_refuses_a_host_that_is_no_string(host: Any) -> None:
    with pytest.raises(TypeError, match="health_host must be a name, an address or None, got"):
        Service(Supervisor("tree"), health_port=0, health_host=host)


SECRET = "s3cret"  # noqa: S105  what must not be told


class Crashing:
    def run(self) -> None:
        raise OSError(13, "denied", f"/etc/{SECRET}")

    def shutdown(self, *, timeout: float) -> bool:
        return True


class Unavailable:
    """A source whose file cannot be read."""

    name = "stored"
    closed = False

    def receive(self, **_: Any) -> list[Message[str, None]]:
        raise MailboxConnectionError("stored", f"cannot open /var/{SECRET}/mail.db")


@pytest.mark.parametrize("probe", list(Probe))
def test_probe_answer_has_nothing_of_exceptions_messages_and_files(
    probe: Probe, warden: SupervisorRef, simulation: Simulation
) -> None:
    def refuse(message: Message[str, None]) -> None:
        raise ValueError(message.body)

    jobs = InMemoryMailbox[str, None]("jobs")
    jobs.send_many([f"{SECRET} {number}" for number in range(20)])
    warden.spawn(ChildSpec(id="failing", start=lambda: MailboxLoop(jobs, refuse)))
    warden.spawn(ChildSpec(id="stored", start=lambda: MailboxLoop(Unavailable(), print)))
    warden.spawn(ChildSpec(id="crashing", start=Crashing, restart="transient"))
    simulation.settle()

    answer = Prober([warden]).answer(probe)

    assert SECRET not in answer.model_dump_json()
    assert len(answer.reasons) == (0 if probe is Probe.LIVE else 3 if probe is Probe.READY else 1)
