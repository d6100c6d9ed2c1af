"""The log lines of librdkafka, passed on: of those that differ only in numbers one in REPEAT_S,
whichever client of a `Connection` writes it; none above the level `warning`, and those about what
the client tries again at the level `debug`."""

import logging
import re
import time
from typing import Any

import structlog

log = structlog.get_logger("chronos.kafka")

REPEAT_S = 10.0
"""Pause before a line of the client is logged again: it writes a hundred a second about a broker
that is gone."""

LINES_MAX = 1_000
"""Lines remembered."""

DIGITS = re.compile(r"\d+")

FAILED = "FAIL ["
"""Beginning of a line of the client about a connection that failed, or could not be made."""

RETRIED = ": retrying"
"""End of a line about a request that the client repeats, as for a producer id while a new broker
loads its coordinator."""


class ClientLog:
    """Logger of the clients: passes librdkafka's lines on, each of them once in `REPEAT_S`."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}

    def log(self, level: int, text: str, *arguments: Any) -> None:
        """The one method the client calls; `level` is one of Python's."""
        line = text % arguments if arguments else text
        now_s = time.monotonic()
        # Every client and thread writes the same line about a broker that is gone, with numbers of
        # its own.
        content = DIGITS.sub("", line.rpartition("]: ")[2])
        if now_s - self._logged_s.get(content, -REPEAT_S) < REPEAT_S:
            return
        if len(self._logged_s) > LINES_MAX:
            self._logged_s.clear()
        self._logged_s[content] = now_s
        # A connection that fails is one of many, and tried again: what cannot be done without it is
        # logged by the one that waits.
        is_tried_again = line.startswith(FAILED) or line.endswith(RETRIED)
        log.log(
            logging.DEBUG if is_tried_again else min(level, logging.WARNING),
            "librdkafka",
            text=line,
        )
