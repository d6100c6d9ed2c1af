"""The well-formed load of a campaign, and what the service used meanwhile."""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from chronos.core.timefmt import parse_time_ms
from tests.harness.service import Service
from tests.integration.foreign import Tail

TOPIC = "load"
SENDERS, EVERY_S, TOGETHER = 10, 0.1, 5
"""Over each of SENDERS connections, a request every EVERY_S with TOGETHER messages: 500 messages a
second, while answers take less."""

AHEAD_MS = 300
ALIVE_EVERY_S = 0.1
"""How often `/livez` is asked, over a connection of its own."""

LATE_S = 60.0
"""How long the last deliveries may take before they count as lost."""


class Figures(NamedTuple):
    """The outcome of a campaign."""

    accepted: int
    """Messages of the load that the service accepted."""
    refused: int
    """Requests of the load without an answer of 202."""
    wrong: int
    """Accepted messages that were not delivered exactly once."""
    late_ms: tuple[int, int, int]
    """Lateness of the deliveries: median, 99th percentile, worst."""
    answer_ms: tuple[int, int, int]
    """Time until a request of the load was answered: median, 99th percentile, worst."""
    alive_ms: tuple[int, int, int]
    """Time until `/livez` answered 200, or the timeout: median, 99th percentile, worst."""
    resident_bytes: int
    """Most resident memory."""
    log_bytes: int
    """What the service logged during the campaign."""


class Load:
    """Schedules messages over SENDERS connections while it is entered, and reads what was delivered
    at the end."""

    def __init__(self, service: Service, topic: str = TOPIC, bootstrap: str = "") -> None:
        """`bootstrap`: the brokers of the service; empty for the embedded log."""
        self._service = service
        self._topic = topic
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._watch, self._ask)
        ]
        self._threads += [
            threading.Thread(target=self._send, args=(one,), daemon=True) for one in range(SENDERS)
        ]
        self._accepted: list[str] = []
        self._refused = 0
        self._answers_ms: list[int] = []
        self._alive_ms: list[int] = []
        self._resident_bytes = 0
        self._log_bytes = service.log_path.stat().st_size

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def _send(self, sender: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=30)
        headers = {"Content-Type": "application/json"}
        if self._service.token:
            headers["Authorization"] = f"Bearer {self._service.token}"
        at = 0
        self._stopping.wait(EVERY_S * sender / SENDERS)
        while not self._stopping.is_set():
            began_s = time.monotonic()
            due_ms = time.time_ns() // 1_000_000 + AHEAD_MS
            messages = [
                {
                    "target": {"topic": self._topic},
                    "value": "x" * 100,
                    "deliver_at": due_ms,
                    "id": f"{self._topic}-{sender}-{number}",
                }
                for number in range(at, at + TOGETHER)
            ]
            at += TOGETHER
            try:
                connection.request("POST", "/v1/messages", json.dumps(messages), headers=headers)
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (OSError, http.client.HTTPException):
                connection.close()
                status = 0
            if status == 202:
                self._accepted.extend(str(message["id"]) for message in messages)
            else:
                self._refused += 1
            took_s = time.monotonic() - began_s
            self._answers_ms.append(int(took_s * 1_000))
            self._stopping.wait(max(0.0, EVERY_S - took_s))
        connection.close()

    def _ask(self) -> None:
        while not self._stopping.wait(ALIVE_EVERY_S):
            began_s = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=10)
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/livez")
                connection.getresponse().read()
            connection.close()
            self._alive_ms.append(int((time.monotonic() - began_s) * 1_000))

    def _watch(self) -> None:
        while not self._stopping.wait(0.2):
            self._resident_bytes = max(self._resident_bytes, self._service.resident_bytes())

    def figures(self) -> Figures:
        """Read all deliveries; call it after the load."""
        log_bytes = self._service.log_path.stat().st_size - self._log_bytes
        delivered: Counter[str] = Counter()
        late: list[int] = []
        read = self._delivered_on_kafka if self._bootstrap else self._delivered
        for name, late_ms in read():
            delivered[name] += 1
            late.append(late_ms)
        return Figures(
            accepted=len(self._accepted),
            refused=self._refused,
            wrong=sum(delivered[name] != 1 for name in self._accepted),
            late_ms=spread(late),
            answer_ms=spread(self._answers_ms),
            alive_ms=spread(self._alive_ms),
            resident_bytes=self._resident_bytes,
            log_bytes=log_bytes,
        )

    def _delivered(self) -> Iterator[tuple[str, int]]:
        """The id and the lateness (ms) of each delivery, until there are enough or for LATE_S."""
        found = offset = 0
        deadline_s = time.monotonic() + LATE_S
        while time.monotonic() < deadline_s and found < len(self._accepted):
            status, answer = self._service.ask(
                "GET", f"/v1/topics/{self._topic}/records?limit=1000&wait=1s&offset={offset}"
            )
            if status != 200:
                time.sleep(1)
                continue
            for record in answer["records"]:
                found += 1
                headers = record["headers"]
                yield (
                    headers["chronos-id"],
                    parse_time_ms(record["timestamp"]) - int(headers["chronos-due-at"]),
                )
            offset = answer["next_offset"]

    def _delivered_on_kafka(self) -> Iterator[tuple[str, int]]:
        """The same."""
        with Tail(self._bootstrap, self._topic) as tail:
            deadline_s = time.monotonic() + LATE_S
            while time.monotonic() < deadline_s and len(tail.records[self._topic]) < len(
                self._accepted
            ):
                tail.read()
            for got in tail.settle().records[self._topic]:
                yield (
                    (got.header("chronos-id") or b"").decode(),
                    got.timestamp_ms - int(got.header("chronos-due-at") or 0),
                )


def spread(values: list[int]) -> tuple[int, int, int]:
    """Median, 99th percentile, worst."""
    ordered = sorted(values)
    if not ordered:
        return 0, 0, 0
    last = len(ordered) - 1
    return ordered[last // 2], ordered[int(last * 0.99)], ordered[-1]
