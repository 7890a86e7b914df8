"""Supervision: supervisors, restart policy, events, and the daemons around them."""

from __future__ import annotations

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
