"""The start of a store that is empty, that the logs do not reach back to, or that an operator wants
to replace (`--from-checkpoint`).

The sources, in order:

1. the newest intact checkpoint at `checkpoints.location`
2. a checkpoint of another node, fetched over HTTP and checked by its digest; not if a replay of
   the logs is short, unless the operator asked for a checkpoint
3. the logs, if they are complete; if the operator asked for a checkpoint, only if there is none

A checkpoint that cannot be fetched or used does no harm: the next source is tried; if this node's
disk has no room for it, the shard tries again after FULL_MS. Without a source the shard waits for a
checkpoint, or its replica raises StoreCorrupt because all checkpoints are damaged, or LogMismatch
because there is none; it never starts without its records (law 1)."""

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import structlog
from msgspec import Struct

from chronos.adapters.checkpoints.files import Copier, discard
from chronos.adapters.checkpoints.node import fetch_checkpoint
from chronos.adapters.rocksdb import RocksStore, finish_replacement
from chronos.core.cluster.roles import Member, ShardRoles
from chronos.core.shard.codec import Identity
from chronos.errors import NoSpace, Retry, StoreCorrupt
from chronos.node.checkpoints import CheckpointScheduler
from chronos.ports import Checkpoint, Clock, steady_ms
from chronos.workers.cluster.membership import Membership, holders
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.replica.state import ReplicaState

log = structlog.get_logger("chronos.checkpoints")

REPLAYED_MAX = 10_000
"""Up to this many records of the logs are replayed rather than fetched from another node: about a
second of work."""

TURN_S = 0.5
"""How long one step waits while another shard of this node fetches a checkpoint; the next step
waits again."""

FULL_MS = 60_000
"""Pause of a shard whose checkpoint found no room on this node's disk, until the next one is
fetched: its source reads the whole store for each."""

SOURCES = (ReplicaState.FOLLOWER, ReplicaState.MASTER)
"""States of the replicas whose stores are fetched: followers first, because masters have more to
do."""


class OtherNodes(Struct, frozen=True, kw_only=True):
    """The other nodes of the cluster, whose stores can be fetched."""

    membership: Membership
    node: str
    """This node."""
    token: str
    """Shown to other nodes as proof of being this one."""
    tls: Callable[[], ssl.SSLContext]
    """The context for a new connection to them."""


class StoreBootstrap:
    """Restores stores of this node, one at a time. Any shard's thread may call."""

    def __init__(
        self,
        copier: Copier,
        *,
        checkpoints: CheckpointScheduler | None,
        others: OtherNodes | None,
        stopping: threading.Event,
        clock: Clock,
        stores: Path,
        forced: Iterable[int] = (),
    ) -> None:
        """`checkpoints`: those at `checkpoints.location`; None without one. `others`: None for a
        standalone node. `stopping`: ends a fetch. `clock`: times the pauses. `stores`: the
        folder of the stores, none of which is open yet: what a killed process left beside them is
        removed. `forced`: shards whose store is replaced by a checkpoint once, regardless of its
        contents (`--from-checkpoint`)."""
        self._copier = copier
        self._checkpoints = checkpoints
        self._others = others
        self._stopping = stopping
        self._clock = clock
        self._forced = set(forced)
        self._turn = threading.Lock()
        self._full: dict[int, tuple[int, str]] = {}
        """Shards whose last checkpoint found no room: when the next one may be fetched (ms,
        steady), and the reason."""
        _clear(stores)

    def restore(
        self, store: RocksStore, identity: Identity, cost: RecoveryCost
    ) -> Checkpoint | None:
        """Return the checkpoint that replaced the contents of the store; None: replay the logs into
        the store as it is.

        `cost`: of that replay. Raises Retry if the logs are not complete and no checkpoint could be
        fetched yet; NoSpace if the disk has no room for one, and for FULL_MS from then on;
        StoreCorrupt if every checkpoint is damaged. A shard that must start from a checkpoint
        starts from nothing else while there is one."""
        shard = identity.shard
        is_needed = cost.store_empty or not cost.logs_complete or shard in self._forced
        if not is_needed or (self._checkpoints is None and self._others is None):
            return None
        until_ms, why = self._full.get(shard, (0, ""))
        if steady_ms(self._clock) < until_ms:
            raise NoSpace(why)
        if not self._turn.acquire(timeout=TURN_S):
            raise Retry(f"another shard of this node fetches a checkpoint; shard {shard} is next")
        try:
            return self._restore(store, identity, cost)
        except NoSpace as error:
            self._full[shard] = (steady_ms(self._clock) + FULL_MS, str(error))
            raise
        finally:
            self._turn.release()

    def _restore(
        self, store: RocksStore, identity: Identity, cost: RecoveryCost
    ) -> Checkpoint | None:
        shard = identity.shard
        into = _fetched(store.path)
        failures: list[StoreCorrupt | Retry] = []
        for fetch in self._sources(identity, cost, into):
            discard(into)
            try:
                checkpoint = fetch()
            except NoSpace:
                raise
            except (StoreCorrupt, Retry) as error:
                if self._stopping.is_set():
                    raise
                log.warning("checkpoint not restored", shard=shard, why=str(error))
                failures.append(error)
                continue
            if checkpoint is None:
                continue
            if (
                checkpoint.applied < cost.applied_min
                or checkpoint.pull_offset < cost.pull_offset_min
            ):
                log.warning("checkpoint behind the logs", shard=shard, checkpoint=checkpoint.name)
                discard(into)
                continue
            store.replace(into)
            self._forced.discard(shard)
            log.info(
                "restored",
                shard=shard,
                checkpoint=checkpoint.name,
                pending=checkpoint.pending,
                bytes=checkpoint.size_bytes,
            )
            return checkpoint
        if shard in self._forced:
            self._raise_without_forced(shard, failures)
        if cost.logs_complete:
            return None
        self._raise_without_checkpoint(shard, failures)
        return None

    def _raise_without_forced(self, shard: int, failures: Sequence[StoreCorrupt | Retry]) -> None:
        """Raise the error for a shard that an operator wants to start from a checkpoint; log if no
        checkpoint was ever made."""
        if failures:
            why = "; ".join(map(str, failures))
            raise Retry(
                f"no checkpoint can replace the store of shard {shard}, as --from-checkpoint "
                f"demands: {why}"
            )
        log.error("no checkpoint to start from", shard=shard)
        self._forced.discard(shard)

    def _raise_without_checkpoint(
        self, shard: int, failures: Sequence[StoreCorrupt | Retry]
    ) -> None:
        """Raise the error for incomplete logs: Retry while a checkpoint may still be fetched, else
        the damage of the first one.

        Returns if no checkpoint was ever made: the replica then raises LogMismatch, because its
        logs begin too late."""
        if self._others_hold(shard) or any(isinstance(failure, Retry) for failure in failures):
            why = "; ".join(map(str, failures)) or "no other node that holds it is there"
            raise Retry(
                f"the logs do not reach back to the store of shard {shard}, and no checkpoint can "
                f"be fetched: {why}"
            )
        if failures:
            raise failures[0]

    def _sources(
        self, identity: Identity, cost: RecoveryCost, into: Path
    ) -> Iterator[Callable[[], Checkpoint | None]]:
        """Yield the sources of a checkpoint in order of preference: functions that put it into the
        folder."""
        checkpoints, shard = self._checkpoints, identity.shard
        if checkpoints is not None:
            yield lambda: checkpoints.restore(shard, identity, into)
        if cost.logs_complete and cost.records <= REPLAYED_MAX and shard not in self._forced:
            return
        for member in self._holders(shard):
            yield lambda member=member: self._fetch(member, identity, into)  # type: ignore[misc]

    def _fetch(self, member: Member, identity: Identity, into: Path) -> Checkpoint:
        log.info("fetching", shard=identity.shard, node=member.node)
        try:
            return self._copier.receive(self._chunks(member, identity.shard), into, identity)
        except NoSpace:
            raise
        except (StoreCorrupt, Retry) as error:
            raise Retry(f"node {member.node}: {error}") from error

    def _chunks(self, member: Member, shard: int) -> Iterator[bytes]:
        others = self._others
        assert others is not None
        for chunk in fetch_checkpoint(
            member.address, shard, node=others.node, token=others.token, tls=others.tls()
        ):
            if self._stopping.is_set():
                raise Retry("this node is stopping")
            yield chunk

    def _holders(self, shard: int) -> list[Member]:
        """Return the other nodes that follow or lead the shard: followers before its master, the
        furthest first."""
        if self._others is None:
            return []
        found = holders(
            self._others.membership.snapshot(), shard, besides=self._others.node, order=SOURCES
        )
        return [member for member, replica in found if replica.role in SOURCES and replica.applied]

    def _others_hold(self, shard: int) -> bool:
        """Return whether another node may hold the shard: also if that node is away, or the roles
        are not known."""
        if self._others is None:
            return False
        roles = self._others.membership.snapshot().roles
        if roles is None:
            return True
        return any(
            node != self._others.node for node in roles.shards.get(shard, ShardRoles()).replicas
        )


def _fetched(store: Path) -> Path:
    """Where a checkpoint for a store is fetched to."""
    return store.with_name(f"{store.name}.fetched")


def _clear(stores: Path) -> None:
    """Remove what a killed process left beside the stores: it takes the room of whole stores, also
    of shards that this node does not get again."""
    for store in {path.with_name(path.name.partition(".")[0]) for path in stores.glob("[0-9]*.*")}:
        finish_replacement(store, _fetched(store))
        discard(_fetched(store))
