"""Where a store begins that holds nothing, or nothing that the logs reach back to.

    1. with the newest checkpoint at `checkpoints.location`
    2. with one of another node, fetched over HTTP, checked by its digest
    3. with the logs, if they are whole

A checkpoint that fails in between, at either place, is no harm: the next one is tried, and in the end the logs.
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import structlog

from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.checkpoints.peers import fetch_checkpoint
from chronos.adapters.rocksdb.store import RocksStore
from chronos.core.codec import Identity
from chronos.core.roles import Member
from chronos.errors import NoSpace, Retry, StoreCorrupt
from chronos.node.checkpointing import CheckpointScheduler
from chronos.ports import Checkpoint
from chronos.workers.membership import Membership
from chronos.workers.replica import RecoveryCost

log = structlog.get_logger("chronos.checkpoints")

REPLAYED_MAX = 10_000
"""Records of the logs that are replayed sooner than another node is asked for its store; about a second of work."""

TURN_S = 0.5
"""How long one turn waits while another shard of this node fetches; the next turn waits again."""

GIVING = ("follower", "master")
"""Roles of replicas to ask, those first that have time."""


class StoreBootstrap:
    """Gives stores of this node a beginning, one at a time. Any shard's thread may call."""

    def __init__(
        self,
        copier: Copier,
        *,
        keeping: CheckpointScheduler | None,
        membership: Membership | None,
        node: str,
        token: str,
        stopping: threading.Event,
        anew: Iterable[int] = (),
    ) -> None:
        """`keeping`: the checkpoints at `checkpoints.location`, if there is one. `membership`: None, if standalone.

        `anew`: shards that begin with a checkpoint once, also where there is a store (`--from-checkpoint`).
        """
        self._copier = copier
        self._keeping = keeping
        self._membership = membership
        self._node = node
        self._token = token
        self._stopping = stopping
        self._anew = set(anew)
        self._turn = threading.Lock()

    def begin(self, store: RocksStore, identity: Identity, replay: RecoveryCost) -> Checkpoint | None:
        """The checkpoint that took the place of what was in the store; None: go on with the logs.

        Raises Retry: the logs are not whole, and nobody gave a checkpoint yet. StoreCorrupt: nobody can.
        """
        needed = replay.empty or not replay.whole or identity.shard in self._anew
        if not needed or (self._keeping is None and self._membership is None):
            return None
        if not self._turn.acquire(timeout=TURN_S):
            raise Retry(f"another shard of this node takes in a checkpoint; shard {identity.shard} is next")
        try:
            found = self._begin(store, identity, replay)
            self._anew.discard(identity.shard)
            return found
        finally:
            self._turn.release()

    def _begin(self, store: RocksStore, identity: Identity, replay: RecoveryCost) -> Checkpoint | None:
        shard = identity.shard
        into = store.path.with_name(f"{shard}.fetched")
        failures: list[StoreCorrupt | Retry] = []
        for fetch in self._sources(identity, replay, into):
            shutil.rmtree(into, ignore_errors=True)
            try:
                found = fetch()
            except NoSpace:
                raise
            except (StoreCorrupt, Retry) as error:
                if self._stopping.is_set():
                    raise
                log.warning("no checkpoint", shard=shard, why=str(error))
                failures.append(error)
                continue
            if found is None:
                continue
            if found.applied < replay.applied_min or found.pull_offset < replay.pull_offset_min:
                log.warning("checkpoint behind the logs", shard=shard, checkpoint=found.name)
                continue
            store.replace(into)
            log.info("restored", shard=shard, checkpoint=found.name, pending=found.pending, bytes=found.size_bytes)
            return found
        if replay.whole:
            return None
        if self._others_hold(shard) or any(isinstance(failure, Retry) for failure in failures):
            why = "; ".join(map(str, failures)) or "no other node that holds it is there"
            raise Retry(
                f"the logs do not reach back to the store of shard {shard}, and no checkpoint can be had: {why}"
            )
        if failures:
            raise failures[0]
        return None

    def _sources(
        self, identity: Identity, replay: RecoveryCost, into: Path
    ) -> Iterator[Callable[[], Checkpoint | None]]:
        """Where a checkpoint may come from, one after the other."""
        keeping, shard = self._keeping, identity.shard
        if keeping is not None:
            yield lambda: keeping.restore(shard, identity, into)
        if replay.whole and replay.records <= REPLAYED_MAX:
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
        for chunk in fetch_checkpoint(member.address, shard, node=self._node, token=self._token):
            if self._stopping.is_set():
                raise Retry("this node is stopping")
            yield chunk

    def _holders(self, shard: int) -> list[Member]:
        """Other nodes that have the shard: followers before its master, and of those the furthest first."""
        if self._membership is None:
            return []
        found = [
            (GIVING.index(replica.role), -replica.applied, member)
            for member in self._membership.snapshot().members.values()
            if member.node != self._node
            and (replica := member.replicas.get(shard)) is not None
            and replica.role in GIVING
            and replica.applied
        ]
        return [member for *_, member in sorted(found, key=lambda each: each[:2])]

    def _others_hold(self, shard: int) -> bool:
        """Whether another node has the shard, also one that is away."""
        if self._membership is None:
            return False
        roles = self._membership.snapshot().roles
        given = None if roles is None else roles.shards.get(shard)
        return roles is None or (given is not None and any(node != self._node for node in given.replicas))
