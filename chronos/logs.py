"""Logging: structlog on standard error, JSON for programs, colours for people.

Nothing that a client sent acts on a terminal; outside the traceback of a bug, nothing of it looks
like a second line. On a full disk lines are lost, and no caller fails."""

import io
import logging
import sys
from contextlib import suppress
from typing import TextIO

import structlog

from chronos.core.texts import printable, printable_json


def set_up(
    level: str, form: str, stream: TextIO | None = None, *, process: str | None = None
) -> None:
    """Log from this level on, as `json` or `console`; `auto` is `console` if stdout and stderr are
    terminals. `process`: what every line has, where other nodes write to the same output."""
    out = sys.stderr if stream is None else stream
    for_people = form == "console" or (form == "auto" and out.isatty() and sys.stdout.isatty())
    renderer: list[structlog.typing.Processor] = (
        [
            _escaped,
            structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=_traceback),
        ]
        if for_people
        else [
            structlog.processors.format_exc_info,
            _PrintableJson(ensure_ascii=False),
        ]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _named,
            *([] if process is None else [_of_process(process)]),
            structlog.processors.TimeStamper(
                fmt="%H:%M:%S" if for_people else "iso", utc=not for_people
            ),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=lambda *names: _Named(out, names[0] if names else ""),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)


def _escaped(
    _: structlog.typing.WrappedLogger, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape control characters: a line shows what clients sent, and must not act on the terminal
    or look like two lines.

    What is no string is shown by its `repr`, which escapes them.
    """
    return {
        name: printable(value) if isinstance(value, str) else value for name, value in event.items()
    }


class _PrintableJson(structlog.processors.JSONRenderer):
    """Lines of JSON that have no effect on a terminal either."""

    def __call__(
        self,
        logger: structlog.typing.WrappedLogger,
        name: str,
        event_dict: structlog.typing.EventDict,
    ) -> str:
        line = super().__call__(logger, name, event_dict)
        return printable_json(line if isinstance(line, str) else line.decode())


def _traceback(out: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Write a traceback without the values of variables, which may be of any size and secret."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write("\n".join(map(printable, text.getvalue().split("\n"))))


class _Forward(logging.Handler):
    """Sends the records of the standard library's logging to the same stream, in the same
    format."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line without a traceback; a malformed HTTP request is not an error of the service."""
        kind = record.exc_info[0] if record.exc_info else None
        level = record.levelno
        if kind is not None and kind.__module__.startswith("aiohttp.http"):
            level = logging.DEBUG
        why = {} if kind is None else {"why": f"{kind.__name__}: {record.exc_info[1]}"}  # type: ignore[index]
        structlog.get_logger(record.name).log(level, record.getMessage(), **why)


class _Named(structlog.WriteLogger):
    """A logger with a name. A line is one write: a process that is killed leaves no line without
    its end before those of the next."""

    def __init__(self, out: TextIO, name: str) -> None:
        super().__init__(out)
        self.name = name

    def msg(self, message: str) -> None:
        """Write a line. On a full disk the line is lost: logging an error must not raise another
        one."""
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = error = critical = fatal = failure = exception = msg


def _of_process(process: str) -> structlog.typing.Processor:
    def name(
        _: structlog.typing.WrappedLogger, __: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        return {**event, "process": process}

    return name


def _named(
    logger: structlog.typing.WrappedLogger, _: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    name = getattr(logger, "name", "")
    if name:
        event["logger"] = name
    return event
