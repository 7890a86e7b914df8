"""A loop as an actor: tickets, control messages, `LoopActor`."""

from __future__ import annotations

from loopwarden._heartbeat import Heartbeat
from loopwarden._ticket import Ticket, wait_all
from loopwarden.actors._actor import ActorExit, ControlActor, Deferred
from loopwarden.actors._current import beat, stop_asked
from loopwarden.actors._dlq_consumer import DLQConsumer
from loopwarden.actors._eval_loop import EvalLoop
from loopwarden.actors._eval_progress import EVAL_PROGRESS, EvalProgress, SampleScored
from loopwarden.actors._fates import MessageFate
from loopwarden.actors._inlet import Inlet
from loopwarden.actors._loop_actor import LoopActor
from loopwarden.actors._loop_ref import LoopRef
from loopwarden.actors._mailbox_loop import MailboxLoop
from loopwarden.actors._main_loop import AgentLoop, MainLoop
from loopwarden.actors._messages import (
    AbandonRequest,
    AbandonResult,
    ControlMessage,
    DrainRequest,
    HealthCheckRequest,
    HealthStatus,
    IntakeStatus,
    PauseRequest,
    ProcessRequest,
    RecallRequest,
    Request,
    ResumeRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    StallReport,
)
from loopwarden.actors._offload_pool import OffloadPool
from loopwarden.actors._progress import Activity, InHand, Progress, WorkerStatus
from loopwarden.actors._reducers import DispatchResult
from loopwarden.actors._ref import ControlRef, check_health
from loopwarden.actors._runnable import Runnable, SupportsPause, SupportsProcess, SupportsRecovery, SupportsRun
from loopwarden.actors._sample import EvalResult, Sample
from loopwarden.actors._session import Session
from loopwarden.actors._session_ref import SessionRef, StateRequest
from loopwarden.actors._session_snapshot import Recovery, SessionSnapshot, SliceSnapshot
from loopwarden.actors._slice import Slice, SliceView, State
from loopwarden.actors._state import LoopState
from loopwarden.actors._work_budget import BudgetStatus, WorkBudget
from loopwarden.actors._zombies import ZOMBIES, Zombies

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
    "EvalLoop",
    "EvalResult",
    "MailboxLoop",
    "MainLoop",
    "Sample",
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
    "Runnable",
    "SupportsPause",
    "SupportsProcess",
    "SupportsRecovery",
    "SupportsRun",
]
