"""A shard that decides as its master would, and a replica that follows it, for tests of what
becomes of the records of one id."""

from __future__ import annotations

from typing import Any

from chronos.core.cron import next_cron
from chronos.core.message import Reason, Record
from chronos.core.query.lookup import FoundMessage, find
from chronos.core.reach import EVERYTHING
from chronos.core.shard.codec import FRESH
from chronos.core.shard.fate import Fate, Fires, Skips, fate_of
from chronos.core.shard.letters import UNCOPIED
from chronos.core.shard.progress import Decision, Outcome
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Staged, with_leaving
from tests.unit.model import Rows
from tests.unit.records import WRITER

SHARD, SHARDS = 1, 3
SECOND = 1_000
START_MS = 1_700_000_000_000


class Registered:
    """A shard that decides as its master would, and a replica that follows it. Times are counted
    in seconds from the start."""

    def __init__(self) -> None:
        rules = Rules(shard=SHARD, shards=SHARDS, next_cron=next_cron)
        self.rows, self.followed = Rows(), Rows()
        self.shard = Shard(rules=rules, state=FRESH, view=self.rows)
        self.replica = Shard(rules=rules, state=FRESH, view=self.followed)
        self.offset = 0
        self.most = 100
        """Most messages that are due, in a step."""
        self.delivered: list[tuple[float, bytes | None, int]] = []
        """Due time in seconds, payload and occurrence of each delivery."""

    def upsert(
        self, at_s: float, value: bytes = b"v", *, policy: str = "upsert", **options: Any
    ) -> str:
        """Schedule the message of the id `id` at this time; return what became of it."""
        options = {"target_topic": "orders", "on_conflict": policy} | options
        return self._execute(at_s, options, value)

    def act(self, at_s: float, action: str, **options: Any) -> str:
        """Act on the message of the id `id`."""
        return self._execute(at_s, {"action": action} | options, None)

    def _execute(self, at_s: float, options: dict[str, Any], value: bytes | None) -> str:
        headers = [
            (f"chronos-{name.replace('_', '-')}", str(text).encode())
            for name, text in options.items()
        ]
        record = Record(self.offset, self.at_ms(at_s), b"id", value, headers)
        self.offset += 1
        staged = self.step(at_s, [record])
        assert bool(staged.letters.rejections) == any(
            reason not in UNCOPIED for _, reason in staged.letters.refused
        )
        if staged.letters.refused and record.offset not in staged.upserts:
            return Reason(staged.letters.refused[0][1]).label
        return staged.upserts.get(record.offset, "done")

    @staticmethod
    def at_ms(at_s: float) -> int:
        return START_MS + int(at_s * SECOND)

    def step(
        self,
        at_s: float,
        records: list[Record] | None = None,
        *,
        parks: bool = False,
        leave: int = 0,
    ) -> Staged:
        """Take the records, and settle what is due; `parks` it in a lane instead."""
        now_ms = self.at_ms(at_s)
        shard = self.shard
        staged = shard.stage(records) if records else shard.stage_nothing(0)
        selection = shard.select(staged, now_ms, self.most, 10**9)
        if leave:
            lanes = [shard.lanes.select(lane, staged, leave, 10**9) for lane in shard.lanes.states]
            selection = with_leaving(selection, [each for each in lanes if each], complete=False)
        decisions = []
        for (due_ms, offset, _), entry in zip(selection.items, selection.entries, strict=True):
            fate: Fate | None = None
            if entry.options is not None and entry.options.repetition is not None:
                fate = fate_of(entry, offset, SHARD, now_ms)
            if parks:
                decisions.append(
                    Decision(
                        due_ms,
                        offset,
                        Outcome.PARKED,
                        Reason.RATE_LIMITED,
                        0,
                        entry.occurrence,
                        1,
                        -3,
                    )
                )
            elif isinstance(fate, Skips):
                decisions.append(
                    Decision(due_ms, offset, Outcome.SKIPPED, 0, fate.next_ms, fate.occurrence, 1)
                )
            else:
                due_s = (entry.due_ms - START_MS) / SECOND
                self.delivered.append((due_s, entry.value, entry.occurrence))
                if fate is not None:
                    assert isinstance(fate, Fires)
                    again = (fate.next_ms, entry.occurrence + 1, 1)
                    decisions.append(Decision(due_ms, offset, Outcome.AGAIN, 0, *again))
        progress = WRITER.progress(staged, selection, tuple(decisions))
        at: dict[str, Any] = {"offset": shard.state.applied, "timestamp_ms": now_ms}
        changes = shard.apply(staged, selection, progress, **at)
        self.rows.write(changes.puts, changes.deletes)
        shard.install(changes)
        followed = self.replica.replay_stage(records or [], progress)
        cursor = (progress.cursor_due_ms, progress.cursor_offset)
        selected = self.replica.replay_select(followed, cursor, progress.lanes)
        changes = self.replica.apply(followed, selected, progress, **at)
        self.followed.write(changes.puts, changes.deletes)
        self.replica.install(changes)
        assert self.followed.rows == self.rows.rows, "a replica executes what its master decided"
        assert followed.upserts == staged.upserts
        return staged

    def found(self) -> FoundMessage:
        found = find(self.rows, self.shard.state, SHARD, SHARDS, b"id", reach=EVERYTHING)
        assert found is not None
        return found

    def due_s(self) -> float:
        entry = self.found().entry
        assert entry is not None
        return (entry.due_ms - START_MS) / SECOND

    def run(self, to_s: int, times: dict[int, dict[str, Any]]) -> None:
        """Go through every second, with an upsert at some of them."""
        for at_s in range(to_s + 1):
            if at_s in times:
                self.upsert(at_s, **times[at_s])
            self.step(at_s)
