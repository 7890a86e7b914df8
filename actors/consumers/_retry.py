"""`RetryPolicy`: what becomes of a message whose handler raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, cast, final

from loopwarden._arguments import MAX_VISIBILITY
from loopwarden._backoff import Backoff
from loopwarden._log import describe
from loopwarden.errors import Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RetryPolicy", "RetryRule", "UnfinishedError", "check_crash_on", "is_retry"]

#: How long a message stays away, or that it is given up at once.
RetryRule: TypeAlias = "Backoff | Literal['dead_letter']"


class UnfinishedError(TypeError):
    """A handler has returned a coroutine or a generator, so it has done nothing, and never will."""


@final
class RetryPolicy:
    """Chooses by the class of what was raised; the nearest class counts, as in an ``except``.

    >>> policy = RetryPolicy(Backoff(jitter=0), {KeyError: "dead_letter", LookupError: Backoff(minimum=9, jitter=0)})
    >>> [policy.delay(error(), 1, 0.5) for error in (ValueError, IndexError, KeyError)]
    [0.5, 9.0, None]

    Args:
        backoff: For what no class is named.
        rules: What is done after which exception.

    Raises:
        TypeError: if it is not one.
        ValueError: if a message would stay away for longer than it can.
    """

    def __init__(self, backoff: Backoff, rules: Mapping[type[Exception], RetryRule] | None) -> None:
        _check_backoff("backoff", backoff)
        if rules is not None:
            _check_rules(rules)
        self._backoff = backoff
        self._rules = {} if rules is None else dict(rules)
        self._has_told_unfinished = False

    def delay(self, error: BaseException, attempt: int, roll: float) -> float | None:
        """Return how many seconds a message is to stay away; None if it is to be a dead letter at once.

        Args:
            error: What its handler raised.
            attempt: How often it was delivered.
            roll: A number from 0 to 1, drawn by the caller.
        """
        if is_retry(error):
            return error.after
        rule: RetryRule = self._backoff
        if self._rules:
            # By the classes themselves, not by hash: other people's classes may have none.
            kinds = (each for kind in type(error).__mro__ for each in self._rules.items() if each[0] is kind)
            rule = next(kinds, (None, self._backoff))[1]
        return None if isinstance(rule, str) else rule.delay(attempt, roll)

    def is_to_be_told(self, error: BaseException) -> bool:
        """Say whether what was raised is worth a line in the log: what is wrong with each message is so once."""
        if type(error) is not UnfinishedError:
            return True
        has_told, self._has_told_unfinished = self._has_told_unfinished, True
        return not has_told


def is_retry(error: BaseException) -> TypeGuard[Retry]:
    """Say whether it is a `Retry`, without running any code of its own: its class may be a property that raises."""
    return issubclass(type(error), Retry)


def check_crash_on(crash_on: object) -> None:
    """Refuse what a loop would stumble over when its handler, or its function, first raises."""
    classes = cast("tuple[object, ...]", crash_on) if issubclass(type(crash_on), tuple) else None
    if classes is None or not all(
        isinstance(each, type) and issubclass(cast("type[object]", each), BaseException) for each in classes
    ):
        raise TypeError(f"crash_on must be a tuple of exception classes, got {describe(crash_on)}")


def _check_rules(rules: object) -> None:
    if not callable(getattr(rules, "items", None)):
        raise TypeError(
            f"retry must be a mapping of exception classes, such as {{OSError: Backoff()}}, got {describe(rules)}"
        )
    for kind, rule in cast("Mapping[object, object]", rules).items():
        if not _is_exception(kind):
            raise TypeError(f"retry must have subclasses of Exception as its keys, got {describe(kind)}")
        if rule != "dead_letter":
            _check_backoff(f"retry[{getattr(kind, '__name__', kind)}]", rule)


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


def _check_backoff(name: str, backoff: object) -> None:
    if not isinstance(backoff, Backoff):
        remedy = "" if name == "backoff" else ', or "dead_letter"'
        raise TypeError(
            f"{name} must be a Backoff, such as Backoff(minimum=0.5, maximum=60){remedy}, got {describe(backoff)}"
        )
    if backoff.maximum * (1 + backoff.jitter) > MAX_VISIBILITY:
        raise ValueError(
            f"{name}.maximum must be at most {MAX_VISIBILITY} s with its jitter, as long as a message can stay away,"
            f" got {describe(backoff)}"
        )
