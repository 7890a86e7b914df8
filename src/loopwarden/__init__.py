"""Actor-model supervision for queue-polling loops, on Pykka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopwarden._lazy import lazy

if TYPE_CHECKING:
    from loopwarden.actors import (
        DLQConsumer,
        DrainRequest,
        EventLoopThread,
        HealthCheckRequest,
        HealthStatus,
        Heartbeat,
        IntakeStatus,
        LoopActor,
        LoopRef,
        LoopState,
        MailboxLoop,
        MainLoop,
        OffloadPool,
        PauseRequest,
        PeriodicLoop,
        ProcessRequest,
        ResumeRequest,
        Runnable,
        Session,
        ShutdownConfirmRequest,
        ShutdownRequest,
        ShutdownResult,
        Slice,
        SupportsProcess,
        SupportsRun,
        Ticket,
        WorkBudget,
        beat,
        check_health,
        stop_asked,
        wait_all,
    )
    from loopwarden.mailbox import Mailbox, Message, Token, open_mailbox
    from loopwarden.supervision import (
        Backoff,
        ChildRef,
        ChildSpec,
        DaemonScope,
        ExitCode,
        LoopGroup,
        ReaperActor,
        Service,
        ShutdownCoordinator,
        ShutdownReport,
        Supervisor,
        SupervisorRef,
        WatchdogActor,
        WhichChildrenRequest,
        daemon_scope,
        serve,
    )

__all__ = [
    # Loops
    "DLQConsumer",
    "EventLoopThread",
    "Heartbeat",
    "LoopActor",
    "LoopRef",
    "LoopState",
    "MailboxLoop",
    "MainLoop",
    "PeriodicLoop",
    "OffloadPool",
    "Runnable",
    "SupportsProcess",
    "SupportsRun",
    "WorkBudget",
    "beat",
    "stop_asked",
    # Mailboxes
    "Mailbox",
    "Message",
    "Token",
    "open_mailbox",
    # Supervision
    "Backoff",
    "ChildRef",
    "ChildSpec",
    "DaemonScope",
    "ExitCode",
    "LoopGroup",
    "ReaperActor",
    "Service",
    "ShutdownCoordinator",
    "ShutdownReport",
    "Supervisor",
    "SupervisorRef",
    "WatchdogActor",
    "daemon_scope",
    "serve",
    # State that events change
    "Session",
    "Slice",
    # Tickets
    "Ticket",
    "check_health",
    "wait_all",
    # Control messages and their answers
    "DrainRequest",
    "HealthCheckRequest",
    "HealthStatus",
    "IntakeStatus",
    "PauseRequest",
    "ProcessRequest",
    "ResumeRequest",
    "ShutdownConfirmRequest",
    "ShutdownRequest",
    "ShutdownResult",
    "WhichChildrenRequest",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "loopwarden.actors": (
                "DLQConsumer DrainRequest EventLoopThread HealthCheckRequest HealthStatus Heartbeat IntakeStatus "
                "LoopActor LoopRef LoopState MailboxLoop MainLoop OffloadPool PauseRequest PeriodicLoop ProcessRequest "
                "ResumeRequest "
                "Runnable Session ShutdownConfirmRequest ShutdownRequest ShutdownResult Slice SupportsProcess "
                "SupportsRun Ticket WorkBudget beat check_health stop_asked wait_all"
            ),
            "loopwarden.mailbox": "Mailbox Message Token open_mailbox",
            "loopwarden.supervision": (
                "Backoff ChildRef ChildSpec DaemonScope ExitCode LoopGroup ReaperActor Service "
                "ShutdownCoordinator ShutdownReport Supervisor SupervisorRef WatchdogActor WhichChildrenRequest "
                "daemon_scope serve"
            ),
        },
        modules=("actors", "clock", "errors", "mailbox", "supervision"),
    )
