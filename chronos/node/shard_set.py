"""The shards of a node: their stores and drivers, which of them have a thread, and the positions of
their stores at the last flush.

Each driver runs its shard by itself (`shards`). This object starts those that have something to do,
flushes the stores, and closes them once no shard has a thread."""

import threading
from collections.abc import Callable, Collection

import structlog

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.rocksdb import BlockCache, RocksStore
from chronos.config import Config
from chronos.core.keys import STATE_KEY
from chronos.core.shard.codec import FRESH, Identity, unpack_state
from chronos.errors import NoSpace, Retry, Stop
from chronos.node.data_directory import DataDirectory
from chronos.node.opening import open_store
from chronos.node.shards import ShardDriver
from chronos.ports import Log
from chronos.workers.replica.checkpoint import LogPosition
from chronos.workers.replica.state import ReplicaState

log = structlog.get_logger("chronos.node")


class ShardSet:
    """All shards of one node, by number."""

    def __init__(self, config: Config, directory: DataDirectory) -> None:
        self.drivers: list[ShardDriver] = []
        self.stores: dict[int, RocksStore] = {}
        self.may_start = False
        """The shards may be started: the node reads its log from now on."""
        self._config = config
        self._directory = directory
        self._flushed: dict[int, LogPosition] = {}
        """By shard, the position of its store at its last flush, from which it replays after a
        crash."""
        self._started: set[int] = set()
        """Shards that were started once."""
        self._starting = threading.Lock()
        """Held while shards are started."""
        self._is_changed = False
        """The state of a shard changed, and is to be reported at once."""

    # --- opening

    def open_store(
        self, mine: Identity, *, cache: BlockCache | None, creates: bool
    ) -> tuple[RocksStore, LogPosition]:
        """Return the store of a shard and its position; see `opening.open_store`."""
        store = open_store(
            self._config, self._directory, mine.shard, cache=cache, mine=mine, creates=creates
        )
        self.stores[mine.shard] = store
        position = self._flushed[mine.shard] = _position(store)
        return store, position

    # --- roles

    def led(self) -> set[int]:
        """Return the shards that this node is master of."""
        return self._in(ReplicaState.MASTER)

    def not_held(self) -> set[int]:
        """Return the shards that this node does not hold."""
        return self._in(ReplicaState.NONE)

    def held(self) -> list[int]:
        """Return the shards that this node holds."""
        return [shard.number for shard in self.drivers if shard.role != ReplicaState.NONE]

    def _in(self, role: ReplicaState) -> set[int]:
        return {shard.number for shard in self.drivers if shard.role == role}

    # --- changes

    def note_change(self) -> None:
        """Have the state of the shards reported at once. Any thread may call it."""
        self._is_changed = True

    def take_change(self) -> bool:
        """Return whether the state of a shard changed since the last call."""
        changed, self._is_changed = self._is_changed, False
        return changed

    # --- threads

    def start(self, may: Callable[[ShardDriver], bool] = lambda shard: True) -> None:
        """Start the shards that have something to do and no thread, if they may."""
        with self._starting:
            for shard in self.drivers:
                if self.may_start and shard.lacks_thread and may(shard):
                    number = shard.number
                    if self._config.log.kind == "kafka" and number not in self._started:
                        self._directory.begin_reading(number, self._flushed[number].pull_offset)
                    self._started.add(number)
                    shard.start()

    def step_soon(self, changed: Collection[int]) -> None:
        """Have these shards step soon: their roles changed."""
        for number in changed:
            self.drivers[number].step_soon()

    # --- positions

    def flushed(self, number: int) -> LogPosition:
        """Return the position of a shard's store at its last flush."""
        return self._flushed[number]

    def restored(self, number: int, position: LogPosition) -> None:
        """Note the position of a store whose contents were replaced by a checkpoint."""
        self._flushed[number] = position

    def flush(self, log_port: Log) -> None:
        """Flush all stores, so that a crash replays only later records, and trim an embedded log to
        the flushed positions."""
        topics = self._config.topics
        for shard in self.drivers:
            number, store = shard.number, self.stores[shard.number]
            # The state is read before the flush, which covers at least as much of the logs; unless
            # the store was replaced or reopened meanwhile, and holds something older.
            opened = store.times_opened
            try:
                position = _position(store)
                store.flush()
            except Retry:
                if store.is_open:
                    raise
                continue  # the node no longer holds the shard
            if store.times_opened != opened:
                continue
            self._flushed[number] = position
            if isinstance(log_port, EmbeddedLog):
                log_port.trim(topics.delay, number, position.pull_offset)
                log_port.trim(topics.progress, number, position.applied)

    # --- stop

    def stop(self) -> None:
        """Ask all threads to end after their step."""
        for shard in self.drivers:
            shard.stop()

    def join(self, deadline_s: float) -> None:
        """Wait for the ends of all threads, until the deadline (of `time.monotonic()`)."""
        for shard in self.drivers:
            shard.join(deadline_s)

    def running(self) -> list[int]:
        """Return the shards that have a thread."""
        return [shard.number for shard in self.drivers if shard.is_running]

    def close(self) -> None:
        """Close all stores; no shard may have a thread."""
        for store in self.stores.values():
            try:
                store.close()
            except (NoSpace, Stop) as error:
                log.warning("closing a store", why=str(error))


def _position(store: RocksStore) -> LogPosition:
    """Return the position of the state in a store; the beginning of the logs for one that is not
    open."""
    (data,) = store.get([STATE_KEY]) if store.is_open else (None,)
    return LogPosition.of(FRESH if data is None else unpack_state(data))
