"""The counts of a plan in its report."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from pyspark.sql import Row

from chronos.cli.spark.restore import _show_plan
from chronos.spark.backfill import job
from chronos.spark.backfill.job import counted
from chronos.spark.ledger import BackfillReport
from chronos.spark.request import BackfillRequest

PLANNED = BackfillReport(
    run="r",
    state="planned",
    request=BackfillRequest(mode="all"),
    messages=0,
    bytes=0,
    sent_before=4,
    expired=0,
    first_due_ms=None,
    last_due_ms=None,
    outcomes={},
    targets={},
    absent_targets=[],
    samples=[],
    planned_ms=1,
)


def cell(messages: int, **changed: Any) -> Row:
    """Rows of a plan that are counted together."""
    numbers = {
        "messages": messages,
        "bytes": 10 * messages,
        "first": 100 - messages,
        "last": 100 + messages,
    }
    return Row(
        **{
            "is_requested": True,
            "left_out": None,
            "outcome": "missing",
            "target": "orders",
            **numbers,
            **changed,
        }
    )


def test_the_report_tells_the_plan_apart_from_what_is_left_out_of_it() -> None:
    """Messages without the requested headers are not counted at all."""
    found = counted(
        PLANNED,
        [
            cell(2),
            cell(3, outcome="delivered"),
            cell(4, target="mails"),
            cell(5, left_out="expired"),
            cell(6, left_out="expired", target="mails"),
            cell(7, left_out="too-large"),
            cell(8, left_out="no-target"),
            cell(11, left_out="compacted"),
            cell(9, is_requested=False),
            cell(10, is_requested=False, left_out="expired"),
        ],
    )
    assert (found.messages, found.bytes, found.first_due_ms, found.last_due_ms) == (9, 90, 96, 104)
    assert (found.expired, found.too_large, found.no_target, found.sent_before) == (11, 7, 8, 4)
    assert found.compacted == 11
    assert found.outcomes == {"missing": 6, "delivered": 3}
    assert found.targets == {"orders": 5, "mails": 4}


def test_a_restore_counts_its_ids_and_what_may_have_been_delivered() -> None:
    """An id is no message of a target and has no time."""
    restore = structs.replace(PLANNED, request=BackfillRequest(mode="pending", lost_ms=1))
    cells = [
        cell(2, outcome="pending"),
        cell(3, outcome="unknown"),
        cell(4, outcome="unknown", left_out="unknown"),
        cell(50, outcome="settled"),
        cell(60, outcome="settled", left_out="no-id"),
    ]
    found = counted(restore, cells)
    assert (found.messages, found.settled, found.unknown, found.unknown_left_out) == (55, 50, 7, 4)
    assert (found.targets, found.first_due_ms, found.last_due_ms) == ({"orders": 5}, 97, 103)
    assert counted(PLANNED, cells).unknown == 0


def test_the_plan_of_a_restore_says_what_is_lost_and_what_is_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The numbers of messages are those without ids."""
    report = structs.replace(
        PLANNED,
        request=BackfillRequest(mode="pending", lost_ms=1_893_456_010_000),
        archived_ms=1_893_456_000_000,
        messages=12,
        settled=2,
        unknown=7,
        unknown_left_out=5,
        unarchived_targets=["mails"],
        targets={"orders": 10},
    )
    _show_plan(report)
    shown = " ".join(capsys.readouterr().out.split())
    assert "ends at 2030-01-01T00:00:00.000Z, 10 s before the loss at" in shown
    assert "to restore: 10 messages, 0 B of payload, and 2 ids as delivered" in shown
    assert "may have been delivered: 7, 5 left out, 2 repeated" in shown
    assert "not archived: mails" in shown
    _show_plan(structs.replace(report, unknown_left_out=7))
    assert "may have been delivered: 7, left out (--repeat-unknown)" in " ".join(
        capsys.readouterr().out.split()
    )
    _show_plan(structs.replace(report, archived_ms=0, unknown=0))
    assert capsys.readouterr().out.startswith("the archive has no end")


def test_an_empty_plan_has_no_times() -> None:
    """Neither has one of which all messages are left out."""
    for cells in ([], [cell(1, left_out="expired")]):
        found = counted(PLANNED, cells)
        assert (found.messages, found.bytes, found.first_due_ms, found.last_due_ms) == (
            0,
            0,
            None,
            None,
        )
        assert (found.outcomes, found.targets) == ({}, {})


def test_a_report_names_the_targets_with_most_messages(monkeypatch: Any) -> None:
    """Of targets with the same number, the first by name."""
    monkeypatch.setattr(job, "TARGETS_MAX", 2)
    found = counted(PLANNED, [cell(1, target=name) for name in "dbca"] + [cell(1, target="c")])
    assert list(found.targets.items()) == [("c", 2), ("a", 1)]
