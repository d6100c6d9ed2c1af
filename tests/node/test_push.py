"""What the pusher makes of a selection, ahead of its step or in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.core.codec import pack_entry, unpack_entry
from chronos.core.message import Entry
from chronos.core.rules import Rules
from chronos.core.shard import Selection
from chronos.ports import TopicSpec
from chronos.workers.push import PlannedTransaction, Pusher
from tests.harness.clock import HandClock

NOW_MS = 1_800_000_000_000
EXPIRED_MS = NOW_MS - 5


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog(tmp_path / "log", clock=HandClock(), progress_topic="progress", disk_reserve_bytes=0)
    log.prepare(
        [TopicSpec(name=name, partitions=1, settings={}) for name in ("orders", "rejected", "dead")], create=True
    )
    yield log
    log.close()


def pusher_on(log: EmbeddedLog, *, seen: bool = True) -> Pusher:
    """One that has looked at the target before, or not."""
    pusher = Pusher(
        log,
        Rules(shard=0, shards=1),
        delay_topic="delay",
        rejected_topic="rejected",
        dead_letter_topic="dead",
        create_topics=False,
        attempts_max=1,
        retry_base_ms=1_000,
        retry_cap_ms=60_000,
    )
    if seen:
        pusher.targets.look(["orders"], NOW_MS)
    return pusher


def selected(*expiries: int | None) -> Selection:
    """Messages that are due, the first with an id, each with one header of its own."""
    items = []
    for at, expire_at_ms in enumerate(expiries):
        entry = Entry(
            b"id" if at == 0 else None,
            NOW_MS - 9 + at,
            "orders",
            None,
            {"own": b"o"},
            b"%d" % at,
            NOW_MS - 99,
            expire_at_ms,
        )
        items.append((entry.due_ms, 7 + at, pack_entry(entry)))
    entries = [unpack_entry(data) for _, _, data in items]
    return Selection(items=items, entries=entries, named=[0], cursor=items[-1][:2], complete=False)


def convict_first(pusher: Pusher) -> None:
    pusher.poison_offset = 7


def convict_second(pusher: Pusher) -> None:
    pusher.poison_offset = 8


def forget(pusher: Pusher) -> None:
    pusher.targets.forget_all()


def nothing(pusher: Pusher) -> None:
    pass


@pytest.mark.parametrize("meanwhile", [nothing, convict_first, convict_second, forget])
@pytest.mark.parametrize("expiries", [(None, None, None), (None, EXPIRED_MS, None), (EXPIRED_MS, None, NOW_MS + 5)])
@pytest.mark.parametrize("seen", [True, False])
def test_what_was_planned_ahead_is_what_would_be_planned_now(
    log: EmbeddedLog, meanwhile: Callable[[Pusher], None], expiries: tuple[int | None, ...], seen: bool
) -> None:
    """Also when the targets or the suspicion changed in between; no header is given twice."""

    def planned(*, ahead: bool) -> PlannedTransaction:
        pusher, selection = pusher_on(log, seen=seen), selected(*expiries)
        if ahead:
            pusher.plan_ahead(selection)
        meanwhile(pusher)
        return pusher.plan(selection, [], NOW_MS)

    plan = planned(ahead=True)
    assert plan == planned(ahead=False)
    assert len(plan.messages) + len(plan.decisions) >= 3
    for _, _, _, headers, _ in plan.messages:
        names = [name for name, _ in (headers.items() if isinstance(headers, dict) else headers)]
        assert len(names) == len(set(names))
        assert {"own", "chronos-id", "chronos-due-at", "chronos-source"} <= set(names)


def test_a_selection_that_is_not_the_one_planned_ahead_gets_a_plan_of_its_own(log: EmbeddedLog) -> None:
    pusher = pusher_on(log)
    pusher.plan_ahead(selected(None, None, None))
    plan = pusher.plan(selected(None), [], NOW_MS)
    assert [message[2] for message in plan.messages] == [b"0"]
    assert plan.due_ms == [NOW_MS - 9]
