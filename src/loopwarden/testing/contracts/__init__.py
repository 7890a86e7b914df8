"""Suites that any implementation of ours, or of yours, runs by subclassing; they need pytest."""

from __future__ import annotations

from loopwarden.testing.contracts._bad_input import BadInput
from loopwarden.testing.contracts._bodies import Bodies
from loopwarden.testing.contracts._dead_letters import DeadLetterRules
from loopwarden.testing.contracts._delivery import Delivery
from loopwarden.testing.contracts._flow import Flow
from loopwarden.testing.contracts._leases import Leases
from loopwarden.testing.contracts._runnable import RunnableContract
from loopwarden.testing.contracts._stats import Stats

__all__ = ["MailboxContract", "RunnableContract"]


class MailboxContract(Delivery, Leases, DeadLetterRules, Flow, BadInput, Bodies, Stats):
    """The rules that every mailbox keeps: subclass it in a test module, and pytest runs them all.

    Say how to make a mailbox with ``make_mailbox(clock, name, **options)``. A rule that needs a capability is
    skipped where the back end does not have it.
    """
