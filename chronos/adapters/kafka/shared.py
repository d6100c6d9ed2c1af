"""One consumer for the quiet partitions of a node, and readers that move to it and from it
(`PatientReader`, a `ports.Reader`).

A consumer of its own costs a partition two threads or more, connections, two fetches a second and,
with up to 50 shards, a request for metadata a second, whether anything is written or not. So a
patient reader moves to the shared consumer while next to nothing comes, and has its own one
otherwise: the shared one names all its partitions in each fetch, and its records pass through one
more thread.

No record is lost or read twice by a move: the next reader begins at the position of the one before
it. In a move because of the traffic it takes over only once it has answered. After an error, a
seek, or too many records for a share, a reader with a consumer of its own takes over at once."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from chronos.adapters.kafka.closing import consumers
from chronos.adapters.kafka.connection import HARMLESS_READ_CODES
from chronos.adapters.kafka.reader import KafkaReader
from chronos.core.message import Record
from chronos.errors import ChronosError

log = structlog.get_logger("chronos.kafka")

QUIET_S = 10.0
"""Time in s over which records are counted."""

QUIET_RECORDS = 10
"""Records in QUIET_S beyond which a reader leaves the shared consumer, whose fetches name all
partitions; with half as many it moves there. A shard without messages gets a probe, which is one
record in each of its partitions, every `failover.every` (5 s)."""

HELD_MAX = 1_000
"""Messages that a share holds: its reader asks for them at once, unless it is held up."""

HELD_BYTES = 8_000_000
"""Bytes of payloads that a share holds, and one message more."""

POLL_S = 0.2
"""Longest wait of the shared consumer's thread, after which it sees a new partition."""

IDLE_POLL_S = 1.0
"""Longest time without a poll while there are no shares: lines for the log wait for one, of which
the client writes some twenty a second while all brokers are gone."""

IGNORED_CODES = HARMLESS_READ_CODES | {KafkaError._PARTITION_EOF}
"""Errors that mean nothing without the share of the partition they are about."""


class Share:
    """A partition's share of the shared consumer, see `reader.PartitionConsumer`. `put` and `end`
    are for the consumer's thread, the rest is for the reader's."""

    def __init__(self, shared: "SharedConsumer") -> None:
        self._shared = shared
        self._changed = threading.Condition()
        self._messages: deque[Message] = deque()
        self._bytes = 0
        """Of the payloads that came since it last held none."""
        self.place = TopicPartition("")
        """Topic, partition, and the offset at which it begins."""
        self.has_ended = False
        """No message comes after those that it holds."""
        self._is_woken = False
        """The next poll, or the current one, waits no longer."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Begin at an offset. A share begins once: a seek ends it."""
        if self.place.topic:
            self.unassign()
            return
        (self.place,) = partitions
        self._shared.add(self)

    def poll(self, timeout_s: float) -> Message | None:
        """Return the next message; None if the time passes first, if it was woken, or if there
        will be none."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._messages or self.has_ended or self._is_woken, timeout_s
            )
            self._is_woken = False
            return self._messages.popleft() if self._messages else None

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        """Return up to so many messages that are there; the timeout must be 0."""
        assert timeout_s == 0
        with self._changed:
            return [self._messages.popleft() for _ in range(min(count, len(self._messages)))]

    def unassign(self) -> None:
        """End the share; what it holds is discarded."""
        self.end()
        with self._changed:
            self._messages.clear()

    def close(self) -> None:
        """End the share and leave the consumer."""
        self.unassign()
        self._shared.remove(self)

    def put(self, message: Message) -> None:
        """Hold a message; end the share if there are too many."""
        with self._changed:
            if self.has_ended:
                return
            if not self._messages:
                self._bytes = 0
            if len(self._messages) < HELD_MAX and self._bytes < HELD_BYTES:
                self._messages.append(message)
                self._bytes += len(message)
            else:
                self.has_ended = True
            self._changed.notify()

    def wake(self) -> None:
        """End the current poll, or else the next one. Any thread may call."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def end(self) -> None:
        """Take no more messages."""
        with self._changed:
            self.has_ended = True
            self._changed.notify()


class SharedConsumer:
    """The consumer, and the thread that passes its messages on. Any thread may call.

    Only that thread changes the assignment, between two polls: no message of an earlier share of a
    partition can reach a later one."""

    def __init__(self, settings: Callable[[], dict[str, object]]) -> None:
        """`settings`: those of the consumer, asked for when it is opened."""
        self._settings = settings
        self._lock = threading.Lock()
        self._asked: deque[tuple[Share, bool]] = deque()
        """Shares to be added, or removed if False."""
        self._woken = threading.Event()
        """Something is asked for, or the thread shall end."""
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def add(self, share: Share) -> None:
        """Begin to fetch for the share, soon; it ends at once if that is impossible."""
        with self._lock:
            if self._is_closing:
                share.end()
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kafka-quiet-partitions", daemon=True
                )
                self._thread.start()
            self._asked.append((share, True))
            self._woken.set()

    def remove(self, share: Share) -> None:
        """Fetch no more for the share, soon."""
        with self._lock:
            self._asked.append((share, False))
            self._woken.set()

    def close(self) -> None:
        """End the thread and all shares."""
        with self._lock:
            self._is_closing = True
            self._woken.set()
        if self._thread is not None:
            self._thread.join(2 * POLL_S)

    def _run(self) -> None:
        held: dict[tuple[str, int], Share] = {}
        consumer: Consumer | None = None
        try:
            consumer = Consumer(self._settings())
            while not self._is_closing:
                if not held:
                    self._woken.wait(IDLE_POLL_S)
                if self._woken.is_set():
                    self._assign(consumer, held)
                self._pass_on(consumer, held)
        except Exception:
            log.exception("shared consumer failed")
        finally:
            with self._lock:
                self._is_closing = True
                asked = list(self._asked)
            for share in [*held.values(), *(share for share, _ in asked)]:
                share.end()
            if consumer is not None:
                consumers.close(consumer)

    def _assign(self, consumer: Consumer, held: dict[tuple[str, int], Share]) -> None:
        """Add and remove shares, in the order in which it was asked for."""
        with self._lock:
            asked = list(self._asked)
            self._asked.clear()
            self._woken.clear()
        for share, is_new in asked:
            at = share.place.topic, share.place.partition
            if is_new == (at in held) or (not is_new and held[at] is not share):
                # Another reader of this process has the partition, or it was never added.
                share.end()
                continue
            if share.has_ended and is_new:
                continue
            try:
                if is_new:
                    consumer.incremental_assign([share.place])
                    held[at] = share
                else:
                    del held[at]
                    consumer.incremental_unassign([share.place])
            except KafkaException as error:
                log.warning("partition not shared", topic=at[0], partition=at[1], why=str(error))
                share.end()

    def _pass_on(self, consumer: Consumer, held: dict[tuple[str, int], Share]) -> None:
        """Wait for messages, if there are shares, and give each to its share; an error without a
        partition ends all shares, so that each reader meets it."""
        first = consumer.poll(POLL_S if held else 0)
        if first is None:
            return
        for message in [first, *consumer.consume(HELD_MAX, 0)]:
            share = held.get((message.topic() or "", message.partition() or 0))
            error = message.error()
            if share is not None:
                share.put(message)
            elif error is None or error.code() in IGNORED_CODES:
                continue
            elif error.fatal():
                raise KafkaException(error)
            else:
                for each in held.values():
                    each.end()


class PatientReader:
    """A partition for as long as it is read patiently. See `ports.Reader`. For one thread."""

    def __init__(
        self,
        alone: Callable[[int], KafkaReader],
        shared: Callable[[int, Share], KafkaReader],
        consumer: SharedConsumer,
        offset: int,
        *,
        shares: bool = False,
        quiet_s: float = QUIET_S,
    ) -> None:
        """`alone`, `shared`: make a reader from an offset on, with a consumer of its own or with a
        share of `consumer`. `shares`: begin with a share. `quiet_s`: see QUIET_S."""
        self._alone = alone
        self._shared = shared
        self._consumer = consumer
        self._quiet_s = quiet_s
        self._share: Share | None = Share(consumer) if shares else None
        """The share of the current reader; None: it has a consumer of its own."""
        self._reader = alone(offset) if self._share is None else shared(offset, self._share)
        self._next: tuple[KafkaReader, Share | None] | None = None
        """The reader that takes over once it has answered."""
        self._count_anew()

    @property
    def position(self) -> int:
        return self._reader.position

    @property
    def delayed(self) -> str | None:
        """Never."""
        return None

    @property
    def waker(self) -> Callable[[], None] | None:
        """Ends a wait of a reader that shares the consumer."""
        share = self._share
        return None if share is None else share.wake

    def _count_anew(self) -> None:
        self._since_s = time.monotonic()
        self._records = 0
        """Records since then."""

    def wait(self, timeout_s: float) -> bool:
        return self._reader.wait(timeout_s) or (self._share is not None and self._share.has_ended)

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """Return what the client has fetched, see `KafkaReader.read`."""
        if self._next is not None:
            self._take_over(*self._next)
        try:
            records = self._reader.read(records_max, bytes_max)
        except ChronosError:
            # The same error comes again to a reader of its own.
            self._read_alone()
            raise
        self._records += len(records)
        if self._share is not None and self._share.has_ended and not records:
            self._read_alone()
        elif self._share is not None and self._records > QUIET_RECORDS and self._next is None:
            self._next = self._alone(self.position), None
        elif time.monotonic() - self._since_s >= self._quiet_s:
            if self._share is None and self._next is None and 2 * self._records <= QUIET_RECORDS:
                share = Share(self._consumer)
                self._next = self._shared(self.position, share), share
            self._count_anew()
        return records

    def _take_over(self, reader: KafkaReader, share: Share | None) -> None:
        """Replace the current reader if the next one has answered."""
        if share is not None and (share.has_ended or reader.position != self.position):
            # Something came meanwhile.
            self._drop_next()
        elif reader.wait(0):
            if reader.position != self.position:
                reader.seek(self.position)
            self._reader.leave()
            self._reader, self._share, self._next = reader, share, None
            self._count_anew()

    def _drop_next(self) -> None:
        if self._next is not None:
            reader, _ = self._next
            self._next = None
            reader.leave()

    def _read_alone(self) -> None:
        """Read with a consumer of its own at once, if it does not."""
        self._drop_next()
        if self._share is not None:
            position = self.position
            self._reader.leave()
            self._reader, self._share = self._alone(position), None
        self._count_anew()

    def seek(self, offset: int) -> None:
        self._read_alone()
        self._reader.seek(offset)

    def close(self) -> None:
        """Close what is open."""
        self._drop_next()
        self._reader.close()
