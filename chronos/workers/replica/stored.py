"""The stored shard: a replica's store and the shard that is loaded from it, with the worker that
deletes from the store what is past its retention.

Keeps its part of laws 7 and 9: a shard is loaded again from its store before anything is applied
after a failure, and what is deleted does not depend on when the worker runs. Raises NoSpace or
ApplyFailed while nothing may be written."""

from chronos.core.keys import STATE_KEY
from chronos.core.shard.codec import FRESH, State, unpack_state
from chronos.core.shard.shard import Shard
from chronos.errors import ApplyFailed, NoSpace
from chronos.ports import Watermarks
from chronos.workers.replica.context import ReplicaContext
from chronos.workers.replica.recovery import RecoveryCost, begun
from chronos.workers.replica.retention import DELETE_EVERY_MS, Deleter


class StoredShard:
    """One node's store of a shard, and the shard as of the last step."""

    def __init__(self, context: ReplicaContext) -> None:
        self.known = False
        """The state is that of the store; False: it must not be reported."""
        self._context = context
        self._deleter: Deleter | None = None
        self._delete_ms = 0
        """When the delete worker is due (epoch ms)."""
        # A store that is not open holds nothing yet: it is created with the first assignment.
        self._make(self._stored_state() if context.store.is_open else FRESH)

    @property
    def state(self) -> State:
        """The shard's state as of the last step."""
        return self.shard.state

    @property
    def id_states_ms(self) -> int | None:
        """How long the delete worker keeps the state of a settled id (ms); None: nothing is
        deleted."""
        return None if self._deleter is None else self._deleter.id_states_ms

    def mend(self) -> None:
        """Reopen a store that failed in the background, and load the shard. Raises NoSpace while
        its disk still fails."""
        store = self._context.store
        if store.is_open and store.background_error() is not None:
            # Until then it takes no write and no flush, even if its disk works again.
            store.reopen()
            self._make(self._stored_state())

    def open(self) -> None:
        """Open the store if it is closed, and load the shard. Raises LogMismatch."""
        if not self._context.store.is_open:
            self._context.store.open()
        self._make(self._stored_state())

    def close(self) -> None:
        """Close the store; the state remains, as of the last step."""
        store = self._context.store
        if store.is_open:
            # Closing flushes too, but a store that it could not flush would be closed.
            store.flush()
            store.close()

    def begin_at(self, progress: Watermarks, delay: Watermarks) -> None:
        """Have a shard whose store is empty begin where its logs say, see `recovery.begun`. Raises
        LogUnavailable, LogMismatch."""
        context = self._context
        self.shard.state = begun(
            self.state,
            context.log,
            context.rules.shard,
            context.rules.shards,
            context.settings.progress_topic,
            progress,
            delay,
        )

    def restore(self, cost: RecoveryCost) -> bool:
        """Return whether a checkpoint replaced the contents of the store; then the shard is loaded
        from it. Raises Retry while a checkpoint is needed and cannot be had."""
        if cost.replaces_store:
            self.known = False
        restored = self._context.restore(cost)
        self.known = True
        if restored:
            self._make(self._stored_state())
        return restored

    def delete(self, now_ms: int) -> int:
        """Step the delete worker if it is due; return when it is due next (epoch ms)."""
        if self._deleter is None:
            return now_ms + DELETE_EVERY_MS
        # A time further away than the interval was set by a clock that was ahead then.
        if not 0 < self._delete_ms - now_ms <= DELETE_EVERY_MS:
            self._delete_ms = self._deleter.step(now_ms)
        return self._delete_ms

    def check_writable(self) -> None:
        """Raise NoSpace, or ApplyFailed, if no step may write to the store now."""
        why = self._context.guard()
        if why is not None:
            raise NoSpace(why)
        error = self._context.store.background_error()
        if error is not None:
            raise ApplyFailed(
                f"the store takes no writes: {error}. Make room on its disk, or look at the disk "
                "itself"
            )

    def _stored_state(self) -> State:
        (data,) = self._context.store.get([STATE_KEY])
        return FRESH if data is None else unpack_state(data)

    def _make(self, state: State) -> None:
        """Make the shard and its delete worker."""
        context, settings = self._context, self._context.settings
        self.shard = Shard(rules=context.rules, state=state, view=context.store)
        self.known = True
        self._deleter = None
        if settings.delivered_ms is not None:
            self._deleter = Deleter(
                context.store,
                self.shard,
                delivered_ms=settings.delivered_ms,
                deduplication_ms=settings.deduplication_ms,
            )
        self._delete_ms = 0
