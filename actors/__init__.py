"""A loop as an actor: tickets, control messages, `LoopActor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopwarden._lazy import lazy

if TYPE_CHECKING:
    from loopwarden._heartbeat import Heartbeat
    from loopwarden._threads import Inlet
    from loopwarden._ticket import Ticket, wait_all
    from loopwarden.actors.consumers._dlq_consumer import DLQConsumer
    from loopwarden.actors.consumers._eval_loop import (
        EVAL_PROGRESS,
        EvalLoop,
        EvalProgress,
        EvalResult,
        Sample,
        SampleScored,
    )
    from loopwarden.actors.consumers._event_loop import EventLoopThread
    from loopwarden.actors.consumers._mailbox_loop import MailboxLoop
    from loopwarden.actors.consumers._mailbox_worker import Source
    from loopwarden.actors.consumers._main_loop import AgentLoop, MainLoop
    from loopwarden.actors.consumers._periodic_loop import PeriodicLoop
    from loopwarden.actors.loop._current import beat, stop_asked
    from loopwarden.actors.loop._health import Activity, InHand, MessageFate, Progress, WorkerStatus
    from loopwarden.actors.loop._loop_actor import LoopActor
    from loopwarden.actors.loop._loop_ref import LoopRef, check_health
    from loopwarden.actors.loop._messages import (
        AbandonRequest,
        AbandonResult,
        DrainRequest,
        HealthCheckRequest,
        HealthStatus,
        IntakeStatus,
        PauseRequest,
        ProcessRequest,
        RecallRequest,
        ResumeRequest,
        ShutdownConfirmRequest,
        ShutdownRequest,
        ShutdownResult,
        StallReport,
    )
    from loopwarden.actors.loop._protocols import (
        LoopTimeouts,
        Runnable,
        SupportsPause,
        SupportsProcess,
        SupportsRecovery,
        SupportsRun,
        SupportsTimeouts,
    )
    from loopwarden.actors.loop._state import LoopState
    from loopwarden.actors.loop._work_budget import BudgetStatus, Permit, Share, WorkBudget
    from loopwarden.actors.offload._pool import OffloadPool
    from loopwarden.actors.runtime._actor import ActorExit, ControlActor, Deferred
    from loopwarden.actors.runtime._ref import ControlRef
    from loopwarden.actors.runtime._request import ControlMessage, Request
    from loopwarden.actors.runtime._zombies import ZOMBIES, Zombies
    from loopwarden.actors.session._session import Session
    from loopwarden.actors.session._session_ref import SessionRef, StateRequest
    from loopwarden.actors.session._slice import DispatchResult, Slice, SliceView, State
    from loopwarden.actors.session._snapshot import Recovery, SessionSnapshot, SliceSnapshot

__all__ = [
    # Actors and their refs
    "ActorExit",
    "ControlActor",
    "ControlRef",
    "Deferred",
    "LoopActor",
    "LoopRef",
    # Tickets
    "Ticket",
    "check_health",
    "wait_all",
    # Control messages
    "AbandonRequest",
    "ControlMessage",
    "DrainRequest",
    "HealthCheckRequest",
    "PauseRequest",
    "ProcessRequest",
    "RecallRequest",
    "Request",
    "ResumeRequest",
    "ShutdownConfirmRequest",
    "ShutdownRequest",
    "StallReport",
    # Answers
    "AbandonResult",
    "BudgetStatus",
    "HealthStatus",
    "IntakeStatus",
    "MessageFate",
    "ShutdownResult",
    "WorkerStatus",
    # Loops that are included
    "AgentLoop",
    "DLQConsumer",
    "EventLoopThread",
    "EvalLoop",
    "EvalResult",
    "MailboxLoop",
    "MainLoop",
    "PeriodicLoop",
    "Permit",
    "Sample",
    "Share",
    "Source",
    "WorkBudget",
    "beat",
    "stop_asked",
    # Work beside loops
    "OffloadPool",
    # State that events change
    "DispatchResult",
    "Recovery",
    "Session",
    "SessionRef",
    "SessionSnapshot",
    "Slice",
    "SliceSnapshot",
    "SliceView",
    "State",
    "StateRequest",
    # Checkpoints of an evaluation
    "EVAL_PROGRESS",
    "EvalProgress",
    "SampleScored",
    # Threads that were given up
    "ZOMBIES",
    "Zombies",
    # Loops of your own
    "Activity",
    "Heartbeat",
    "InHand",
    "Inlet",
    "LoopState",
    "Progress",
    "LoopTimeouts",
    "Runnable",
    "SupportsPause",
    "SupportsProcess",
    "SupportsRecovery",
    "SupportsRun",
    "SupportsTimeouts",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "loopwarden._heartbeat": "Heartbeat",
            "loopwarden._threads": "Inlet",
            "loopwarden._ticket": "Ticket wait_all",
            "loopwarden.actors.consumers._dlq_consumer": "DLQConsumer",
            "loopwarden.actors.consumers._eval_loop": (
                "EVAL_PROGRESS EvalLoop EvalProgress EvalResult Sample SampleScored"
            ),
            "loopwarden.actors.consumers._event_loop": "EventLoopThread",
            "loopwarden.actors.consumers._mailbox_loop": "MailboxLoop",
            "loopwarden.actors.consumers._mailbox_worker": "Source",
            "loopwarden.actors.consumers._main_loop": "AgentLoop MainLoop",
            "loopwarden.actors.consumers._periodic_loop": "PeriodicLoop",
            "loopwarden.actors.loop._current": "beat stop_asked",
            "loopwarden.actors.loop._health": "Activity InHand MessageFate Progress WorkerStatus",
            "loopwarden.actors.loop._loop_actor": "LoopActor",
            "loopwarden.actors.loop._loop_ref": "LoopRef check_health",
            "loopwarden.actors.loop._messages": (
                "AbandonRequest AbandonResult DrainRequest HealthCheckRequest HealthStatus IntakeStatus "
                "PauseRequest ProcessRequest RecallRequest ResumeRequest ShutdownConfirmRequest ShutdownRequest "
                "ShutdownResult StallReport"
            ),
            "loopwarden.actors.loop._protocols": (
                "LoopTimeouts Runnable SupportsPause SupportsProcess SupportsRecovery SupportsRun SupportsTimeouts"
            ),
            "loopwarden.actors.loop._state": "LoopState",
            "loopwarden.actors.loop._work_budget": "BudgetStatus Permit Share WorkBudget",
            "loopwarden.actors.offload._pool": "OffloadPool",
            "loopwarden.actors.runtime._actor": "ActorExit ControlActor Deferred",
            "loopwarden.actors.runtime._ref": "ControlRef",
            "loopwarden.actors.runtime._request": "ControlMessage Request",
            "loopwarden.actors.runtime._zombies": "ZOMBIES Zombies",
            "loopwarden.actors.session._session": "Session",
            "loopwarden.actors.session._session_ref": "SessionRef StateRequest",
            "loopwarden.actors.session._slice": "DispatchResult Slice SliceView State",
            "loopwarden.actors.session._snapshot": "Recovery SessionSnapshot SliceSnapshot",
        },
    )
