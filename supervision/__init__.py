"""Supervision: supervisors, restart policy, events, and the daemons around them."""

from __future__ import annotations

from loopwarden._backoff import Backoff
from loopwarden.supervision._census import Census, take_census
from loopwarden.supervision._child import ChildState
from loopwarden.supervision._child_ref import ChildRef
from loopwarden.supervision._effects import EventKind
from loopwarden.supervision._events import EventStream, SupervisionEvent
from loopwarden.supervision._exit_code import ExitCode
from loopwarden.supervision._ladder import StallPolicy
from loopwarden.supervision._loop_group import LoopGroup
from loopwarden.supervision._probe_server import ProbeServer
from loopwarden.supervision._prober import Prober
from loopwarden.supervision._probes import Probe, ProbeAnswer, judge_health
from loopwarden.supervision._reaper import ReaperActor
from loopwarden.supervision._requests import (
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
from loopwarden.supervision._scope import DaemonScope, daemon_scope
from loopwarden.supervision._service import Service, TimeoutOptions, serve
from loopwarden.supervision._shutdown import SupportsClose
from loopwarden.supervision._shutdown_coordinator import ShutdownCoordinator
from loopwarden.supervision._shutdown_report import LoopReport, PhaseReport, ShutdownReport
from loopwarden.supervision._signal_relay import SignalRelay
from loopwarden.supervision._spec import ChildSpec, SupervisorOptions, SupervisorSpec
from loopwarden.supervision._supervisor import Supervisor
from loopwarden.supervision._supervisor_ref import SupervisorRef
from loopwarden.supervision._timeouts import Timeouts
from loopwarden.supervision._verdict import ExitReason
from loopwarden.supervision._watchdog import WatchdogActor

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
