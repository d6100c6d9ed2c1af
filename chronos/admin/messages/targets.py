"""Descriptions of target topics for the HTTP interface: why a target would refuse a message now.

For such a target a new message gets a warning, and a dead letter is not replayed without `anyway`.
Whether a due message is delivered, the shard decides, by descriptions of its own. One request at a
time describes topics, and the descriptions are kept for a short time. An answer waits at most
WAIT_S for a description, and is given without it otherwise."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping

import structlog
from msgspec import Struct

from chronos.admin.http.waiting import ThreadTurns, asker
from chronos.core.message import DUE_AT, ID, PREFIX, SOURCE, TARGET_KEY, Headers, Reason
from chronos.core.size import batch_bytes
from chronos.errors import ChronosError
from chronos.ports import Outgoing, TopicInfo, TopicLog

log = structlog.get_logger("chronos.http")

WAIT_S = 0.3
"""How long an answer waits for a description at most."""

GOOD_S = 10.0
"""How long the description of a topic that takes messages is used."""

BAD_S = 2.0
"""How long that of any other topic is used: an operator may be about to create it."""

ASK_EVERY_S = 0.1
"""Least time between two requests to the brokers."""

SILENT_S = 10.0
"""After a request that failed, none is made for this time."""

TOPICS_ASKED = 100
"""Topics of one request."""

TOPICS_WAITING = 1_000
"""Topics that wait to be described; further ones are not."""

TOPICS_KEPT = 10_000
"""Descriptions that are kept."""

RECEIPT_BYTES = 512
"""More than a receipt adds to a message."""

TopicInfos = Mapping[str, TopicInfo | None]
"""Descriptions by topic: None for a missing one, and no entry for one of which nothing is known."""

Objection = tuple[Reason, str]
"""The reason for which a target would refuse a message: the reason of its dead letter, and a text
for people."""


class _Known(Struct):
    info: TopicInfo | None
    until_s: float


class TargetTopics:
    """The descriptions of one server. For one event loop."""

    def __init__(self, log_port: TopicLog, threads: ThreadTurns) -> None:
        """`threads`: where the requests to the brokers are made."""
        self._log = log_port
        self._threads = threads
        self._known: dict[str, _Known] = {}
        self._wanted: dict[str, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._began_s = float("-inf")
        self._quiet_until_s = float("-inf")

    def request(self, topics: Collection[str]) -> None:
        """Have the topics described that are not known; does not wait."""
        now_s = time.monotonic()
        if now_s < self._quiet_until_s:
            return
        for topic in topics:
            known = self._known.get(topic)
            if (known is None or known.until_s <= now_s) and len(self._wanted) < TOPICS_WAITING:
                self._wanted[topic] = None
        if self._wanted and (self._asking is None or self._asking.done()):
            self._began_s = now_s
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    async def known(self, topics: Collection[str]) -> TopicInfos:
        """The descriptions of those topics that are described, after WAIT_S at most since they were
        requested."""
        asking = self._asking
        if (
            asking is not None
            and not asking.done()
            and any(topic in self._wanted for topic in topics)
        ):
            left_s = self._began_s + WAIT_S - time.monotonic()
            if left_s > 0:
                await asyncio.wait([asking], timeout=left_s)
        now_s = time.monotonic()
        return {
            topic: found.info
            for topic in topics
            if (found := self._known.get(topic)) is not None and found.until_s > now_s
        }

    async def look(self, topics: Collection[str]) -> TopicInfos:
        """Request the topics and return their descriptions."""
        self.request(topics)
        return await self.known(topics)

    async def _ask(self) -> None:
        """Describe what is wanted, part by part."""
        asker.set(None)  # for all requests that wait for it, whichever token's came first
        while self._wanted:
            part = list(self._wanted)[:TOPICS_ASKED]
            try:
                infos = await self._threads.run(self._log.describe, part)
            except ChronosError as error:
                self._wanted.clear()
                self._quiet_until_s = time.monotonic() + SILENT_S
                log.info("targets not described", why=str(error))
                return
            now_s = time.monotonic()
            if len(self._known) > TOPICS_KEPT:
                self._known.clear()
            for topic in part:
                info = infos[topic]
                is_good = info is not None and info.writable
                self._known[topic] = _Known(info, now_s + (GOOD_S if is_good else BAD_S))
                self._wanted.pop(topic, None)
            if self._wanted:
                await asyncio.sleep(ASK_EVERY_S)


def objection(
    topic: str,
    described: TopicInfos,
    *,
    bytes_about: int,
    has_key: Callable[[], bool],
    size: Callable[[], int],
    creates: bool,
) -> Objection | None:
    """Return why the target would not take a message now; None if it would, or if that is not
    known.

    `bytes_about`: its size without the receipt, rounded up; `size`: the least size of its record,
    called where that does not decide. `creates`: missing topics are created on demand."""
    if topic not in described:
        return None
    info = described[topic]
    if info is None:
        text = (
            f"the target topic {topic} does not exist; create it before the message is due, or it "
            "becomes a dead letter"
        )
        return None if creates else (Reason.TARGET_MISSING, text)
    if not info.writable:
        return Reason.FORBIDDEN_TARGET, f"Kafka does not let Chronos write to {topic}"
    if info.compacted and not has_key():
        return Reason.NO_KEY, f"{topic} is compacted and takes no message without a key"
    if bytes_about + RECEIPT_BYTES > info.bytes_max and (exact := size()) > info.bytes_max:
        text = (
            f"the message takes {exact} bytes, and {topic} takes {info.bytes_max} "
            "(max.message.bytes)"
        )
        return Reason.TOO_LARGE, text
    return None


def delivered_bytes(
    message_id: bytes | None, key: bytes | None, value: bytes | None, own: Headers
) -> int:
    """Return the bytes of the record that a target gets, with the shortest receipt. `own`: the
    headers of the user."""
    receipt = [
        (ID, message_id or b"0-1893456000123-0"),
        (DUE_AT, b"1893456000123"),
        (SOURCE, b"chronos.delay/0/0"),
    ]
    return batch_bytes(key, value, [*own, *receipt])


def planned_bytes(record: Outgoing) -> int:
    """Return the same for a record of the delay topic."""
    _, message_id, value, headers, _ = record
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    key = next((content for name, content in pairs if name == TARGET_KEY), None)
    return delivered_bytes(
        message_id, key, value, [pair for pair in pairs if not pair[0].startswith(PREFIX)]
    )
