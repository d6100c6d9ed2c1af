"""The judge of `scripts/clients` finds planted faults, and its plan has a message of every kind for
every pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.campaign import plan
from tests.clients.judge import STRANGE, Delivered, Reading, judge, judge_reader
from tests.clients.programs import CLIENTS, left_out

DUE_MS = 1_800_000_000_000
CLIENTS_HERE = ("java", "sarama")
ACTING = ("java", "sarama", "java:abort")
EACH = 10
PLAN = plan(CLIENTS_HERE, ACTING, EACH, "target", DUE_MS, seed=1)


def as_planned() -> list[Delivered]:
    """What a service without faults delivers."""
    return [
        Delivered(name, each.value, each.due_ms)
        for name, each in PLAN.expected.items()
        if each.value is not None
    ]


def test_every_pair_has_messages_that_are_cancelled_replaced_rescheduled_and_left() -> None:
    """Nothing that an aborted transaction does counts."""
    pairs = {(producer, canceller) for producer in CLIENTS_HERE for canceller in ACTING}
    assert set(judge(PLAN.expected, [])) == pairs
    for producer, canceller in pairs:
        mine = {
            name: each for name, each in PLAN.expected.items() if each[:2] == (producer, canceller)
        }
        assert len(mine) == EACH
        cancelled = sum(each.value is None for each in mine.values())
        replaced = sum(each.value == b"replaced " + name for name, each in mine.items())
        moved = sum(each.value == name and each.due_ms > DUE_MS for name, each in mine.items())
        assert (cancelled, replaced, moved) == (
            (0, 0, 0) if canceller == "java:abort" else (5, 1, 1)
        )
    for canceller in ACTING:
        verbs = Counter(
            dict(record.headers).get("chronos-action") for record in PLAN.acted[canceller]
        )
        assert verbs == {b"cancel": 4, None: 6, b"replace": 2, b"reschedule": 2}
    assert sum(len(records) for records in PLAN.written.values()) == len(PLAN.expected)


def test_a_delivery_as_planned_is_not_wrong() -> None:
    assert not any(judge(PLAN.expected, as_planned()).values())


def of_pair(pair: tuple[str, str], *, cancelled: bool) -> bytes:
    """A message of a pair."""
    return next(
        name
        for name, each in PLAN.expected.items()
        if each[:2] == pair and (each.value is None) is cancelled
    )


PAIR = ("java", "sarama")
GONE, KEPT = (of_pair(PAIR, cancelled=is_gone) for is_gone in (True, False))


def changed(**fields: object) -> Callable[[Delivered], Delivered]:
    """One field of the message that is delivered as planned."""
    return lambda got: got._replace(**fields) if got.id == KEPT else got  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lambda found: [*found, Delivered(GONE, GONE, DUE_MS)], "cancelled and delivered"),
        (lambda found: [got for got in found if got.id != KEPT], "lost"),
        (lambda found: [*found, *(got for got in found if got.id == KEPT)], "duplicated"),
        (lambda found: list(map(changed(value=b"first"), found)), "other value"),
        (lambda found: list(map(changed(timestamp_ms=DUE_MS - 1), found)), "early"),
    ],
    ids=["cancelled", "lost", "duplicated", "value", "early"],
)
def test_one_planted_fault_is_found_in_its_pair(
    plant: Callable[[list[Delivered]], list[Delivered]], kind: str
) -> None:
    found = {
        pair: wrong for pair, wrong in judge(PLAN.expected, plant(as_planned())).items() if wrong
    }
    assert found == {PAIR: Counter({kind: 1})}


@pytest.mark.parametrize("name", [None, b"no such id"])
def test_a_delivery_that_nobody_wrote_is_wrong(name: bytes | None) -> None:
    found = judge(PLAN.expected, [*as_planned(), Delivered(name, b"", DUE_MS)])
    assert found[STRANGE, STRANGE] == Counter({"unknown": 1})


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ([b"a", b"b"], Reading(0, 0, 0, 0)),
        ([b"a", b"x", b"x", b"b"], Reading(2, 0, 0, 0)),
        ([b"a", b"\0\0", b"b"], Reading(0, 1, 0, 0)),
        ([b"b"], Reading(0, 0, 1, 0)),
        ([b"a", b"b", b"b"], Reading(0, 0, 0, 1)),
    ],
)
def test_a_reader_is_judged_by_what_it_shows(shown: list[bytes], expected: Reading) -> None:
    assert judge_reader([b"a", b"b"], [b"x", b"y"], shown) == expected


def test_a_client_whose_tool_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that need Python only are never left out."""
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = left_out([client for client in CLIENTS.values() if client.tool != "java"])
    assert {CLIENTS[name].tool for name in absent} == {"go", "node"}
    assert absent["sarama"] == "not installed: go"
    assert absent["kafkajs"] == "not installed: node, npm"
