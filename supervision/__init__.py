"""Supervision: supervisors, restart policy, events, and the daemons around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopwarden._lazy import lazy

if TYPE_CHECKING:
    from loopwarden._backoff import Backoff
    from loopwarden.supervision.daemons._exit import ExitCode
    from loopwarden.supervision.daemons._reaper import ReaperActor
    from loopwarden.supervision.daemons._scope import DaemonScope, daemon_scope
    from loopwarden.supervision.daemons._watchdog import WatchdogActor
    from loopwarden.supervision.health._census import Census, take_census
    from loopwarden.supervision.health._prober import Prober
    from loopwarden.supervision.health._server import ProbeServer
    from loopwarden.supervision.policy._child import ChildState
    from loopwarden.supervision.policy._effects import EventKind
    from loopwarden.supervision.policy._probes import Probe, ProbeAnswer, judge_health
    from loopwarden.supervision.policy._restart import ExitReason
    from loopwarden.supervision.policy._stall import StallPolicy
    from loopwarden.supervision.policy._timeouts import Timeouts
    from loopwarden.supervision.service._coordinator import ShutdownCoordinator
    from loopwarden.supervision.service._loop_group import LoopGroup
    from loopwarden.supervision.service._report import LoopReport, PhaseReport, ShutdownReport
    from loopwarden.supervision.service._service import Service, TimeoutOptions, serve
    from loopwarden.supervision.service._shutdown import SupportsClose
    from loopwarden.supervision.service._signals import SignalRelay
    from loopwarden.supervision.tree._child_ref import ChildRef
    from loopwarden.supervision.tree._events import EventStream, SupervisionEvent
    from loopwarden.supervision.tree._requests import (
        ChildCounts,
        ChildInfo,
        ChildSpecRequest,
        CountChildrenRequest,
        DeleteChildRequest,
        EventsRequest,
        ResizeRequest,
        RestartChildRequest,
        StartChildRequest,
        SubscribeRequest,
        TerminateChildRequest,
        UnsubscribeRequest,
        WhichChildrenRequest,
        WhichChildRequest,
    )
    from loopwarden.supervision.tree._spec import ChildSpec, SupervisorOptions, SupervisorSpec
    from loopwarden.supervision.tree._supervisor import Supervisor
    from loopwarden.supervision.tree._supervisor_ref import SupervisorRef

__all__ = [
    # Supervisors and their children
    "Backoff",
    "ChildRef",
    "ChildSpec",
    "ChildState",
    "ExitReason",
    "Supervisor",
    "SupervisorOptions",
    "SupervisorRef",
    "SupervisorSpec",
    # Shutdown
    "LoopGroup",
    "LoopReport",
    "PhaseReport",
    "Service",
    "ShutdownReport",
    "SupportsClose",
    "TimeoutOptions",
    "Timeouts",
    "serve",
    # Daemons
    "DaemonScope",
    "ExitCode",
    "ReaperActor",
    "ShutdownCoordinator",
    "SignalRelay",
    "StallPolicy",
    "WatchdogActor",
    "daemon_scope",
    # Probes
    "Census",
    "Probe",
    "ProbeAnswer",
    "ProbeServer",
    "Prober",
    "judge_health",
    "take_census",
    # Control messages
    "ChildSpecRequest",
    "CountChildrenRequest",
    "DeleteChildRequest",
    "EventsRequest",
    "ResizeRequest",
    "RestartChildRequest",
    "StartChildRequest",
    "SubscribeRequest",
    "TerminateChildRequest",
    "UnsubscribeRequest",
    "WhichChildRequest",
    "WhichChildrenRequest",
    # Answers
    "ChildCounts",
    "ChildInfo",
    # Events
    "EventKind",
    "EventStream",
    "SupervisionEvent",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "loopwarden._backoff": "Backoff",
            "loopwarden.supervision.daemons._exit": "ExitCode",
            "loopwarden.supervision.daemons._reaper": "ReaperActor",
            "loopwarden.supervision.daemons._scope": "DaemonScope daemon_scope",
            "loopwarden.supervision.daemons._watchdog": "WatchdogActor",
            "loopwarden.supervision.health._census": "Census take_census",
            "loopwarden.supervision.health._prober": "Prober",
            "loopwarden.supervision.health._server": "ProbeServer",
            "loopwarden.supervision.policy._child": "ChildState",
            "loopwarden.supervision.policy._effects": "EventKind",
            "loopwarden.supervision.policy._probes": "Probe ProbeAnswer judge_health",
            "loopwarden.supervision.policy._restart": "ExitReason",
            "loopwarden.supervision.policy._stall": "StallPolicy",
            "loopwarden.supervision.policy._timeouts": "Timeouts",
            "loopwarden.supervision.service._coordinator": "ShutdownCoordinator",
            "loopwarden.supervision.service._loop_group": "LoopGroup",
            "loopwarden.supervision.service._report": "LoopReport PhaseReport ShutdownReport",
            "loopwarden.supervision.service._service": "Service TimeoutOptions serve",
            "loopwarden.supervision.service._shutdown": "SupportsClose",
            "loopwarden.supervision.service._signals": "SignalRelay",
            "loopwarden.supervision.tree._child_ref": "ChildRef",
            "loopwarden.supervision.tree._events": "EventStream SupervisionEvent",
            "loopwarden.supervision.tree._requests": (
                "ChildCounts ChildInfo ChildSpecRequest CountChildrenRequest DeleteChildRequest EventsRequest "
                "ResizeRequest RestartChildRequest StartChildRequest SubscribeRequest TerminateChildRequest "
                "UnsubscribeRequest WhichChildrenRequest WhichChildRequest"
            ),
            "loopwarden.supervision.tree._spec": "ChildSpec SupervisorOptions SupervisorSpec",
            "loopwarden.supervision.tree._supervisor": "Supervisor",
            "loopwarden.supervision.tree._supervisor_ref": "SupervisorRef",
        },
    )
