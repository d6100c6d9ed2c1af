"""A shard that takes records and steps as its master would, for tests of what it answers."""

from __future__ import annotations

from chronos.core.message import Record
from chronos.core.query.lookup import find
from chronos.core.reach import EVERYTHING as ALL_REACH
from chronos.core.shard.codec import FRESH, State
from chronos.core.shard.progress import Decision, Outcome
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import with_leaving
from tests.unit.model import Rows
from tests.unit.records import WRITER

MINUTE_MS = 60_000


NOW_MS = 1_000 * MINUTE_MS


SHARD, SHARDS = 1, 3


class Played:
    """A shard that takes records and steps as its master would."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.shard = Shard(
            rules=Rules(shard=SHARD, shards=SHARDS),
            state=FRESH,
            view=self.rows,
        )
        self.offset = 0

    @property
    def state(self) -> State:
        return self.shard.state

    def step(
        self,
        records: list[Record],
        until_ms: int,
        not_delivered: dict[int, Decision] | None = None,
        *,
        leave: int = 0,
    ) -> None:
        """Take the records and settle everything up to a time, and up to `leave` messages of each
        lane."""
        staged = self.shard.stage(records)
        selection = self.shard.select(staged, until_ms, 1_000, 10**9)
        if leave:
            found = [
                self.shard.lanes.select(lane, staged, leave, 10**9)
                for lane in sorted(self.shard.lanes.states)
            ]
            selection = with_leaving(
                selection, [lane for lane in found if lane is not None], complete=False
            )
        chosen = {item[1] for item in selection.items}
        decisions = tuple(
            decision
            for offset, decision in sorted((not_delivered or {}).items())
            if offset in chosen
        )
        progress = WRITER.progress(staged, selection, decisions)
        changes = self.shard.apply(
            staged,
            selection,
            progress,
            offset=self.state.applied,
            timestamp_ms=max(until_ms, NOW_MS),
        )
        self.rows.write(changes.puts, changes.deletes)
        self.shard.install(changes)

    def send(
        self, due_ms: int, key: bytes | None = None, target: str = "orders", value: bytes = b"v"
    ) -> Record:
        """A message, in the delay partition."""
        return self.record(
            key,
            value,
            {"chronos-deliver-at": b"%d" % due_ms, "chronos-target-topic": target.encode()},
        )

    def record(self, key: bytes | None, value: bytes | None, headers: dict[str, bytes]) -> Record:
        self.offset += 1
        return Record(self.offset - 1, NOW_MS, key, value, list(headers.items()))

    def find(self, message_id: bytes) -> str | None:
        found = find(self.rows, self.state, SHARD, SHARDS, message_id, reach=ALL_REACH)
        return None if found is None else found.state


def parked(lane: int, due_ms: int, offset: int) -> Decision:
    return Decision(due_ms, offset, Outcome.PARKED, lane=lane)
