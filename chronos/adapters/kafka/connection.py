"""The connection to one Kafka cluster: common settings of its clients, their log lines, and errors that name its brokers."""

import re
import time
from collections.abc import Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaException

from chronos.adapters.kafka.errors import MISSING_CODES
from chronos.adapters.kafka.settings import COMMON
from chronos.errors import LogUnavailable

log = structlog.get_logger("chronos.kafka")

REPEAT_S = 10.0
"""Pause before a line of the client is logged again: it writes a hundred a second about a broker that is gone."""

LINES_MAX = 1_000
"""Lines remembered."""

DIGITS = re.compile(r"\d+")


class Connection:
    """A cluster's address and the operator's client properties."""

    def __init__(self, bootstrap_servers: str, properties: Mapping[str, Any]) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._common = {**COMMON, "bootstrap.servers": bootstrap_servers, "logger": ClientLog()}
        self.properties = dict(properties)
        """The operator's properties."""

    def settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of one client: the common ones, its `own`, and over them the operator's."""
        return {**self._common, **own, **self.properties}

    def unavailable(self, doing: str, error: KafkaException) -> LogUnavailable:
        """Return the translation of an error of the client; `doing`: the operation that failed."""
        cause = error.args[0]
        if cause.code() in MISSING_CODES:
            # The client reports the same while no broker answers (measured): only the topic's id proves that it is gone.
            return LogUnavailable(
                f"{doing}: it is not there ({cause.name()}); is a broker at {self.bootstrap_servers} up, or was it deleted?"
            )
        return LogUnavailable(
            f"{doing}: {cause.str()} ({cause.name()}); is a broker at {self.bootstrap_servers} up, and the address right?"
        )

    def unanswered(self, doing: str) -> LogUnavailable:
        """The error of a request that got no answer."""
        return LogUnavailable(f"{doing}: no broker at {self.bootstrap_servers} answered in time")


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
        log.log(min(level, 30), "librdkafka", text=line)
