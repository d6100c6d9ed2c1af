"""Handlers of `/v1/topics`: topics and their records, by long poll.

On the embedded log, which no Kafka consumer can read, all topics are shown. On Kafka only the
topics of Chronos, and by name the targets that `targets.allow` and `targets.deny` permit: Chronos
may have permissions for further topics that the sender of a request does not have. A sender that is
limited to some targets or ids reads only its targets, and of these no records of messages whose ids
are not its own."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from msgspec import UNSET

from chronos.admin.http.access import forbidden
from chronos.admin.http.context import Call, Context
from chronos.admin.http.encoding import headers_out, text_or_base64
from chronos.admin.http.problems import ProblemError, converted, wrong_field
from chronos.admin.http.schemas import (
    LogRecord,
    PartitionInfo,
    Records,
    RecordsQuery,
    Topic,
    Topics,
    TopicsQuery,
)
from chronos.admin.http.tokens import Sender
from chronos.admin.http.waiting import Browsable
from chronos.admin.messages.scheduling import duration_ms
from chronos.core.message import ID, Record
from chronos.core.reach import Reach
from chronos.core.size import memory_bytes
from chronos.core.timefmt import format_time
from chronos.errors import BatchUnreadable, LogMismatch
from chronos.ports import Reader, TopicInfo

ANSWER_BYTES = 4_000_000
"""Bytes of records in one answer, at least one record."""

WAIT_MAX_MS = 60_000
"""Longest poll: shorter than the usual timeouts of proxies and clients."""

WAIT_S = 5.0
"""Longest single wait of a poll; then it checks that the client is still connected."""

FETCH_WAIT_S = 0.2
"""Longest single wait of a poll of Kafka, in a thread that other polls need too."""

FETCH_S = 5.0
"""How long a request waits for records that are in Kafka."""

FETCHES_MAX = 64
"""Requests that read from Kafka at a time, each with a consumer of its own: 8 MiB and some
connections."""


class TopicReads:
    """The handlers under `/v1/topics`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fetches = 0

    async def topics(self, call: Call) -> tuple[int, object]:
        """The topics that the sender may read: on the embedded log all, on Kafka those of Chronos,
        or the one that is asked for."""
        query: TopicsQuery = call.query

        def look() -> list[Topic]:
            found = sorted(self._infos(query).items())
            return [
                self._topic(name, info.partitions)
                for name, info in found
                if query.topic in (UNSET, name)
                and self._may_read(call.sender, name)
                and self._is_shown(name)
            ]

        return 200, Topics(topics=await self._context.in_thread(look))

    def _infos(self, query: TopicsQuery) -> dict[str, TopicInfo]:
        if not self._is_on_kafka:
            return cast(Browsable, self._context.node.log).topics()
        asked = self._own if query.topic is UNSET else (query.topic,)
        found = self._context.node.log.describe([topic for topic in asked if topic])
        return {name: info for name, info in found.items() if info is not None}

    def _may_read(self, sender: Sender, topic: str) -> bool:
        """Return whether the sender may read the topic: Chronos's own topics hold the messages of
        all senders, and are closed to a sender that is limited to some targets or ids."""
        return not sender.is_limited or (
            topic not in self._own and sender.reach.admits_target(topic)
        )

    def _is_shown(self, topic: str) -> bool:
        """Return whether any sender may read the topic by requests."""
        is_target = not topic.startswith("__") and self._context.rules[0].allows(topic)
        return not self._is_on_kafka or topic in self._own or is_target

    def _topic(self, name: str, partitions: int) -> Topic:
        found = []
        for partition in range(partitions):
            watermarks = self._context.node.log.watermarks(name, partition)
            found.append(
                PartitionInfo(partition=partition, start=watermarks.start, end=watermarks.stable)
            )
        return Topic(topic=name, partitions=found)

    async def records(self, call: Call) -> tuple[int, object]:
        """Records of one partition from an offset on; waits for the next one if there is none."""
        query: RecordsQuery = call.query
        topic = call.request.match_info["topic"]
        wait_ms = converted("wait", duration_ms, query.wait)
        if wait_ms > WAIT_MAX_MS:
            raise wrong_field(
                "wait", f"must be at most {WAIT_MAX_MS // 1_000}s; ask again with next_offset"
            )
        deadline_s = asyncio.get_running_loop().time() + wait_ms / 1_000
        if not self._may_read(call.sender, topic):
            raise forbidden(call.sender, f"is not for the topic {topic[:249]}")
        if not self._is_shown(topic):
            raise ProblemError(
                403,
                "closed-topic",
                (
                    f"{topic[:249]} is neither a topic of Chronos nor a target that targets.allow "
                    "and targets.deny permit"
                ),
                hint="read it with a Kafka consumer with isolation.level=read_committed",
            )
        if self._is_on_kafka:
            with self._fetching(), self._context.polls.waiting(call.sender):
                return await self._answer(call, topic, deadline_s)
        if wait_ms == 0:
            return await self._answer(call, topic, deadline_s)
        with self._context.polls.waiting(call.sender):
            loop = asyncio.get_running_loop()
            while not await self._context.polls.wait_for_topic(
                topic, min(deadline_s - loop.time(), WAIT_S)
            ) and not _is_gone(call):
                pass
            return await self._answer(call, topic, deadline_s)

    async def _answer(self, call: Call, topic: str, deadline_s: float) -> tuple[int, object]:
        query: RecordsQuery = call.query
        reader = await self._context.in_poll_thread(self._reader, topic, query)
        try:
            read = self._fetch if self._is_on_kafka else self._read
            records = await read(reader, topic, query, deadline_s, call)
        except LogMismatch as error:
            watermarks = await self._context.in_poll_thread(
                self._context.node.log.watermarks, topic, query.partition
            )
            raise ProblemError(
                410, "trimmed", str(error), hint=f"read on from offset {watermarks.start}"
            ) from None
        finally:
            # A consumer of Kafka takes seconds to close while a broker is gone.
            await self._context.in_poll_thread(reader.close)
        return 200, Records(
            records=[_record(record, query.partition) for record in records],
            next_offset=reader.position,
        )

    async def _fetch(
        self, reader: Reader, topic: str, query: RecordsQuery, deadline_s: float, call: Call
    ) -> list[Record]:
        """The next records of a topic in Kafka, as `_read`: what is there already is waited for as
        well."""
        context, loop = self._context, asyncio.get_running_loop()
        end = await context.in_poll_thread(context.node.log.stable_end, topic, query.partition)
        there_s = max(deadline_s, loop.time() + FETCH_S)
        while True:
            records = await context.in_poll_thread(self._fetched, reader, topic, query)
            own = _own(records, call.sender.reach)
            left_s = (there_s if reader.position < end else deadline_s) - loop.time()
            if own or left_s <= 0 or context.stopping.is_set() or _is_gone(call):
                return own
            if not records:
                await context.in_poll_thread(reader.wait, min(left_s, FETCH_WAIT_S))

    def _fetched(self, reader: Reader, topic: str, query: RecordsQuery) -> list[Record]:
        """Return the fetched records, at most ANSWER_BYTES or one record; a batch that cannot be
        read is skipped."""
        try:
            records = reader.read(query.limit, ANSWER_BYTES)
        except BatchUnreadable as error:
            _, last = self._context.node.log.batch_bounds(topic, query.partition, error.offset)
            reader.seek(last + 1)
            return []
        size = 0
        for at, record in enumerate(records):
            size += memory_bytes(record.key, record.value, record.headers)
            if size > ANSWER_BYTES and at:
                reader.seek(record.offset)
                return records[:at]
        return records

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        """Count one request that reads from Kafka. ProblemError with status 503 when there are too
        many."""
        if self._fetches >= FETCHES_MAX:
            raise ProblemError(
                503,
                "busy",
                f"{self._fetches} requests read from Kafka",
                hint="try again later, read single partitions, or use a Kafka consumer",
            )
        self._fetches += 1
        try:
            yield
        finally:
            self._fetches -= 1

    async def _read(
        self, reader: Reader, topic: str, query: RecordsQuery, deadline_s: float, call: Call
    ) -> list[Record]:
        """The next records; none when the time is over, the server stops, or the client is gone."""
        context = self._context
        while True:
            records = _own(
                await context.in_poll_thread(reader.read, query.limit, ANSWER_BYTES),
                call.sender.reach,
            )
            left_s = deadline_s - asyncio.get_running_loop().time()
            if records or left_s <= 0 or context.stopping.is_set() or _is_gone(call):
                return records
            await context.polls.wait_for_record(
                topic, query.partition, reader.position, min(left_s, WAIT_S)
            )

    def _reader(self, topic: str, query: RecordsQuery) -> Reader:
        info = self._infos(TopicsQuery(topic=topic)).get(topic)
        if info is None:
            raise ProblemError(
                404,
                "no-topic",
                f"there is no topic {topic[:249]}",
                hint="a topic exists from its first record on",
            )
        if query.partition >= info.partitions:
            raise ProblemError(
                404,
                "no-partition",
                f"{topic} has partitions 0 to {info.partitions - 1}, not {query.partition}",
            )
        watermarks = self._context.node.log.watermarks(topic, query.partition)
        offset = watermarks.start if query.offset is UNSET else query.offset
        if offset > watermarks.stable:
            raise wrong_field(
                "offset",
                f"must be at most {watermarks.stable}, where {topic}/{query.partition} ends",
            )
        return self._context.node.log.reader(topic, query.partition, offset)

    @property
    def _own(self) -> tuple[str, ...]:
        topics = self._context.node.config.topics
        return topics.delay, topics.progress, topics.rejected, topics.dead_letter, topics.cluster

    @property
    def _is_on_kafka(self) -> bool:
        return self._context.node.config.log.kind == "kafka"


def _own(records: Sequence[Record], reach: Reach) -> list[Record]:
    """The records without those of messages whose ids are not the sender's own."""
    if not reach.is_limited:
        return list(records)
    return [record for record in records if all(reach.admits_id(each) for each in _ids(record))]


def _ids(record: Record) -> list[bytes]:
    return [value for name, value in record.headers or () if name == ID and value is not None]


def _is_gone(call: Call) -> bool:
    """Return whether the client has left."""
    transport = call.request.transport
    return transport is None or transport.is_closing()


def _record(record: Record, partition: int) -> LogRecord:
    key, key_base64 = text_or_base64(record.key)
    value, value_base64 = text_or_base64(record.value)
    return LogRecord(
        partition=partition,
        offset=record.offset,
        timestamp=format_time(record.timestamp_ms),
        key=UNSET if key_base64 is not UNSET else key,
        key_base64=key_base64,
        value=UNSET if value_base64 is not UNSET else value,
        value_base64=value_base64,
        headers=headers_out(record.headers or ()),
    )
