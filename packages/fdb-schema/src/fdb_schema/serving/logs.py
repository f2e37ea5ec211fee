"""Logs of the services: lines for people, or one JSON object per line for machines; no secrets in either."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import unicodedata
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, TextIO
from urllib.parse import quote

from fdb_schema.serving.configuration import without_credentials

SECRET_VARIABLES: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MAINSPRING_DASHBOARD_TOKEN")
_SHORTEST_SECRET: Final = 6
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_QUIET: Final = ("botocore", "aiobotocore", "boto3", "urllib3", "s3transfer")


class _Escapes(dict[int, str]):
    """Of the characters that a terminal doesn't show as they are: its commands, what turns the direction of text, and what nobody sees, in
    which text can be hidden. Spaces, tab and newline stay.
    """

    def __init__(self, escape: Callable[[int], str]) -> None:
        super().__init__()
        self._escape = escape

    def __missing__(self, code: int) -> str:
        shown = chr(code)
        if not (shown.isprintable() or shown in "\t\n" or unicodedata.category(shown) == "Zs"):
            shown = self._escape(code)
        self[code] = shown
        return shown


def _python_escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_ESCAPES: Final = _Escapes(_python_escape)
JSON_ESCAPES: Final = _Escapes(lambda code: json.dumps(chr(code))[1:-1] if code > 0xFFFF else f"\\u{code:04x}")
"""For `str.translate` of a document of JSON: the same characters, which only its strings hold, as JSON escapes them."""

trace_fields: Callable[[], dict[str, str]] = dict
"""What identifies the trace that the running code is part of; `fdb_schema.serving.tracing` puts its own here."""


def printable(text: str) -> str:
    """`text` for a terminal: characters that would command it, turn the order of others, or not be seen, are shown as escapes."""
    return text if text.isprintable() else text.translate(_ESCAPES)


class LogFormat(StrEnum):
    """How log lines look."""

    text = "text"
    json = "json"


class LogLevel(StrEnum):
    """The least severity that is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def redacted(text: str) -> str:
    """`text` without credentials of URLs and without the secrets of this process's environment."""
    for name in SECRET_VARIABLES:
        secret = os.environ.get(name, "")
        if len(secret) >= _SHORTEST_SECRET:
            # as it is, as JSON has it, as `repr` has it, as a URL has it
            for form in {
                secret,
                json.dumps(secret)[1:-1],
                json.dumps(secret, ensure_ascii=False)[1:-1],
                repr(secret)[1:-1],
                quote(secret, safe=""),
            }:
                text = text.replace(form, "***")
    return without_credentials(text)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time (UTC), level, logger, service, pid, message, what was given in `extra`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "service": self.service,
            "pid": record.process,
            "message": record.getMessage(),
            **trace_fields(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return redacted(json.dumps(line, default=str, ensure_ascii=False)).translate(JSON_ESCAPES)


class TextFormatter(logging.Formatter):
    """A record as a line for people."""

    def __init__(self, service: str = "") -> None:
        super().__init__(f"%(asctime)s %(levelname)s {service and service + ' '}%(name)s pid=%(process)d %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Lines of a message but the first are indented: what others named, or sent, can't look like a record of its own."""
        return super().formatMessage(record).replace("\n", "\n  ")

    def format(self, record: logging.LogRecord) -> str:
        return printable(redacted(super().format(record)))


def configure_logging(
    service: str, form: LogFormat = LogFormat.text, level: LogLevel = LogLevel.info, stream: TextIO | None = None
) -> None:
    """Send every log record of this process to `stream` (standard error), formatted; replaces what was set before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service) if form is LogFormat.json else TextFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.value.upper())
    _quieten()


def log_to_stderr() -> None:
    """The same, as text, for a program that is no service, and where nothing else has been set up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    _quieten()


def _quieten() -> None:
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
