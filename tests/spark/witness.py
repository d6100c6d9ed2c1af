"""A judge of the audit that shares no code with it: what producers wrote and what readers could
read, against what the audit says.

It imports nothing of Chronos. A witness reads the target after each change, so that it also knows
of records that are lost later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.integration.flow import read_committed

Source = tuple[int, int]
"""Partition and offset of the record that brought a message."""


@dataclass
class Witness:
    """The messages that were sent, and the records that a `read_committed` consumer of the target
    ever found."""

    bootstrap: str
    sent: dict[Source, int] = field(default_factory=dict)
    """When the broker had acknowledged each message, epoch ms."""
    seen: dict[Source, set[tuple[int, int, int]]] = field(default_factory=dict)
    """For each message its records in the target: how often the topic had been created, partition
    and offset."""
    lives: Counter[str] = field(default_factory=Counter)
    """How often each target was created again."""

    def look(self, target: str) -> None:
        """Read the target."""
        for record in read_committed(self.bootstrap, target):
            headers: Mapping[str, Any] = dict(record.headers() or ())
            _, partition, offset = headers["chronos-source"].decode().rsplit("/", 2)
            place = self.lives[target], record.partition() or 0, record.offset() or 0
            self.seen.setdefault((int(partition), int(offset)), set()).add(place)

    def lost(self) -> set[Source]:
        """The messages that no reader can have had."""
        return self.sent.keys() - self.seen.keys()

    def contradictions(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        clean: bool,
        broken: bool,
        archived_ms: int,
        to_send: int,
    ) -> list[str]:
        """What an audit of all messages says that is not so. `rows`: its details; `to_send`: what a
        backfill would send.

        It speaks of the messages that were sent before the end of the archive, `archived_ms`.
        """
        found, missing, outcomes = [], 0, dict[Source, str]()
        for row in rows:
            source, outcome = (row["shard"], row["source_offset"]), row["outcome"]
            times = len(self.seen.get(source, ()))
            outcomes[source] = outcome
            missing += outcome == "missing"
            if (outcome, times) in {
                ("missing", 1),
                ("missing", 2),
                ("delivered", 0),
                ("duplicated", 0),
                ("duplicated", 1),
            }:
                found.append(f"{source} is {outcome}, and readers found it {times} times")
            if source not in self.sent:
                found.append(f"{source} is {outcome}, and nobody sent it")
        known = {source for source, sent_ms in self.sent.items() if sent_ms <= archived_ms}
        is_right = known <= outcomes.keys() and set(outcomes.values()) <= {"delivered"}
        if clean and (broken or not is_right):
            found.append(f"clean, with {Counter(outcomes.values())} of {len(known)} messages")
        if to_send != missing:
            found.append(f"{to_send} messages would be sent, and {missing} are missing")
        return found
