"""Log records as JSON, and with the loop and the message that a handler has in hand."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import final

from typing_extensions import override

from loopwarden._log import describe
from loopwarden._log_writer import fields_of
from loopwarden._running import CONTEXT, here
from loopwarden._tracebacks import cut

__all__ = ["ContextFilter", "JsonFormatter"]

_OWN = ("time", "level", "logger", "message", "exception", "stack")


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON, and never raises.

    The keys are ``time`` (ISO 8601, UTC), ``level``, ``logger`` and ``message``; then the fields of the record, which
    are all attributes that not every record has, unless they are None; then ``exception`` and ``stack``, if it has
    them. A field that JSON cannot have is described in words. A field with the name of another key gets a ``_`` behind
    it. A very long traceback is cut in its middle.

    >>> record = logging.makeLogRecord({"created": 0.0, "levelname": "INFO", "name": "shop", "msg": "sold", "order": 7})
    >>> print(JsonFormatter().format(record))
    {"time": "1970-01-01T00:00:00.000Z", "level": "INFO", "logger": "shop", "message": "sold", "order": 7}
    """

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line break at its end."""
        known: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _message_of(record),
        }
        for given, value in fields_of(record).items():
            name = given if type(given) is str else describe(given)  # ``extra`` may have anything for a key
            if value is not None and not name.startswith("_"):
                known[f"{name}_" if name in _OWN else name] = value
        known["exception"] = self._exception_of(record)
        known["stack"] = record.stack_info
        written = (f"{_json(name)}: {_json(value)}" for name, value in known.items() if value is not None)
        return f"{{{', '.join(written)}}}"

    def _exception_of(self, record: logging.LogRecord) -> str | None:
        text: object = record.exc_text
        if text:
            return cut(text) if type(text) is str else describe(text)
        if not record.exc_info or record.exc_info[1] is None:
            return None
        try:
            return cut(self.formatException(record.exc_info))
        except Exception:  # noqa: BLE001  the text of an exception is other people's code
            return describe(record.exc_info[1])


@final
class ContextFilter(logging.Filter):
    """Gives every record the ``loop``, ``mailbox``, ``message_id`` and ``delivery`` that its thread is at work on.

    It lets every record pass. Where one of them is not known it is None, and what a record has already stays. It must
    run on the thread that logs: add it to a handler which others log to directly, such as a ``QueueHandler``, not to
    one behind a queue.

    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(ContextFilter())
    >>> handler.setFormatter(logging.Formatter("%(levelname)s %(loop)s %(message_id)s %(message)s"))
    """

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Complete the record."""
        place = here()
        for name in CONTEXT:
            if not hasattr(record, name):
                setattr(record, name, getattr(place, name))
        return True


def _time_of(record: logging.LogRecord) -> str | None:
    try:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, OSError, TypeError, ValueError):  # a record that was made by hand
        return None


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  arguments are other people's code, and may not fit the text
        return f"{describe(record.msg)} with {describe(record.args)}"


def _json(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=describe)
    except Exception:  # noqa: BLE001  a dictionary or a number may be other people's code, and without end
        return json.dumps(describe(value))
