"""Judgement of a campaign: what was delivered against what had to be, pair by pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

STRANGE = "not one of the messages"
"""Producer and canceller of a delivery whose id no producer wrote."""


class Expected(NamedTuple):
    """How one message has to end."""

    producer: str
    canceller: str
    value: bytes | None
    """Delivered value; None: the message was cancelled."""
    due_ms: int
    """Epoch milliseconds before which it must not be delivered."""


class Delivered(NamedTuple):
    """A record of the target topic."""

    id: bytes | None
    value: bytes | None
    timestamp_ms: int
    """The broker's."""


Pair = tuple[str, str]
"""Producer and canceller."""


def judge(
    expected: Mapping[bytes, Expected], delivered: Iterable[Delivered]
) -> dict[Pair, Counter[str]]:
    """The number of wrong messages of each pair by kind; pairs without any are empty."""
    found: dict[bytes, list[Delivered]] = {}
    wrong: dict[Pair, Counter[str]] = {
        (each.producer, each.canceller): Counter() for each in expected.values()
    }
    for got in delivered:
        if got.id is not None and got.id in expected:
            found.setdefault(got.id, []).append(got)
        else:
            wrong.setdefault((STRANGE, STRANGE), Counter())["unknown"] += 1
    for name, wanted in expected.items():
        wrong[wanted.producer, wanted.canceller].update(_faults(wanted, found.get(name, [])))
    return wrong


def _faults(wanted: Expected, found: list[Delivered]) -> list[str]:
    if wanted.value is None:
        return ["cancelled and delivered"] if found else []
    faults = {
        "lost": not found,
        "duplicated": len(found) > 1,
        "other value": any(got.value != wanted.value for got in found),
        "early": any(got.timestamp_ms < wanted.due_ms for got in found),
    }
    return [name for name, is_true in faults.items() if is_true]


class Reading(NamedTuple):
    """What a reader showed of a topic with aborted transactions."""

    aborted: int
    """Records of aborted transactions."""
    others: int
    """Values that no producer wrote: the markers of transactions."""
    missing: int
    """Committed records that it did not show."""
    repeated: int
    """Committed records that it showed again."""


def judge_reader(
    committed: Iterable[bytes], aborted: Iterable[bytes], shown: Iterable[bytes]
) -> Reading:
    """Compare the values that a reader showed with those that were written."""
    wanted, unwanted, got = Counter(committed), set(aborted), Counter(shown)
    return Reading(
        sum(count for value, count in got.items() if value in unwanted),
        sum(count for value, count in got.items() if value not in unwanted and value not in wanted),
        sum((wanted - got).values()),
        sum(
            count - wanted[value]
            for value, count in got.items()
            if value in wanted and count > wanted[value]
        ),
    )
