"""The connection to one Kafka cluster: common settings of its clients, their log lines, and errors that name its brokers."""

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException

from chronos.adapters.kafka.errors import MISSING_CODES, REFUSED_CODES
from chronos.adapters.kafka.settings import ANSWER_MARGIN_S, COMMON, REQUEST_TIMEOUT_S
from chronos.errors import LogUnavailable

log = structlog.get_logger("chronos.kafka")

REPEAT_S = 10.0
"""Pause before a line of the client is logged again: it writes a hundred a second about a broker that is gone."""

LINES_MAX = 1_000
"""Lines remembered."""

REFUSED_S = 30.0
"""How long a refused connection is named as the cause of other errors: the client connects again within 10 s."""

DIGITS = re.compile(r"\d+")
ATTEMPT = re.compile(r"/bootstrap(?=:)| \(after \d+ms in state \w+\)")
"""Parts of an error of the client that differ from one attempt to the next."""


FAILED = "FAIL ["
"""Beginning of a line of the client about a connection that failed, or could not be made."""

RETRIED = ": retrying"
"""End of a line about a request that the client repeats, as for a producer id while a new broker loads its coordinator."""


class Connection:
    """A cluster's address and the operator's client properties."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, Any], *, request_timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.request_timeout_s = request_timeout_s
        """How long a request to the brokers may take."""
        self.answer_s = request_timeout_s + ANSWER_MARGIN_S
        """Longest wait for the result of a request."""
        self._common = {**COMMON, "bootstrap.servers": bootstrap_servers, "logger": ClientLog()}
        self.properties = dict(properties)
        """The operator's properties."""
        self._refused: tuple[float, str] | None = None
        """Time and text of the last connection that was refused."""
        self.poll: Callable[[], object] = lambda: None
        """Has the client that reports refused connections call `refused` for those since the last call."""

    def settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of one client: the common ones, its `own`, and over them the operator's."""
        return {**self._common, **own, **self.properties}

    def asking(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a client that only asks for topics or offsets.

        A frozen broker keeps its connections, and by default the client waits a minute for its answer before it asks another
        broker for the leaders (measured).
        """
        return self.settings({**own, "socket.timeout.ms": int(self.request_timeout_s * 1_000)})

    def unavailable(self, doing: str, error: KafkaException) -> LogUnavailable:
        """Return the translation of an error of the client; `doing`: the operation that failed."""
        cause, brokers = error.args[0], self.bootstrap_servers
        if cause.code() in MISSING_CODES:
            # The client reports the same while no broker answers (measured): only the topic's id proves that it is gone.
            advice = self.advice(f"is a broker at {brokers} up, or was it deleted?")
            return LogUnavailable(f"{doing}: it is not there ({cause.name()}); {advice}")
        advice = self.advice(f"is a broker at {brokers} up, and the address right?")
        return LogUnavailable(f"{doing}: {cause.str()} ({cause.name()}); {advice}")

    def unanswered(self, doing: str) -> LogUnavailable:
        """The error of a request that got no answer."""
        return LogUnavailable(f"{doing}: {self.advice(f'no broker at {self.bootstrap_servers} answered in time')}")

    def refused(self, error: KafkaError) -> None:
        """Callback of a client for errors of its connections: keep one that explains all other errors."""
        if error.code() in REFUSED_CODES:
            self._refused = time.monotonic(), ATTEMPT.sub("", error.str())

    def advice(self, usual: str) -> str:
        """Return what to do about an error: `usual`, unless connections were refused a moment ago, which explains it."""
        self.poll()
        if self._refused is None or time.monotonic() - self._refused[0] > REFUSED_S:
            return usual
        return f"a connection to {self.bootstrap_servers} was refused: {self._refused[1]}; check log.kafka.properties"


class ClientLog:
    """Logger of the clients: passes librdkafka's lines on, each of them once in `REPEAT_S`."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}

    def log(self, level: int, text: str, *arguments: Any) -> None:
        """The one method the client calls; `level` is one of Python's."""
        line = text % arguments if arguments else text
        now_s = time.monotonic()
        # Every client and thread writes the same line about a broker that is gone, with numbers of its own.
        content = DIGITS.sub("", line.rpartition("]: ")[2])
        if now_s - self._logged_s.get(content, -REPEAT_S) < REPEAT_S:
            return
        if len(self._logged_s) > LINES_MAX:
            self._logged_s.clear()
        self._logged_s[content] = now_s
        # A connection that fails is one of many, and tried again: what cannot be done without it is logged by the one that waits.
        is_tried_again = line.startswith(FAILED) or line.endswith(RETRIED)
        log.log(logging.DEBUG if is_tried_again else min(level, logging.WARNING), "librdkafka", text=line)
