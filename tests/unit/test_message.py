"""Messages: receipts, ids and reasons."""

from __future__ import annotations

from chronos.core.message import (
    Entry,
    Reason,
    entry_id,
    receipt,
)
from tests.unit.records import AT, GENERATED_ID, TO, message


def test_a_delivered_message_can_be_scheduled_again_unchanged() -> None:
    first = message(AT, TO, ("a", b"1"))
    again = message(("a", b"1"), *receipt(first, 41, 2, b"chronos.delay/2/").items(), AT, TO)
    assert again == first


def test_a_receipt_names_source_time_occurrence_and_attempt_when_not_the_first() -> None:
    first = message(AT, TO, ("a", b"1"))
    assert receipt(first, 41, 2, b"chronos.delay/2/") == {
        "chronos-id": GENERATED_ID,
        "chronos-due-at": b"1700000001000",
        "chronos-source": b"chronos.delay/2/41",
    }
    assert entry_id(first, 2, 41) == GENERATED_ID
    later = Entry(b"id", 7, "orders", None, {}, None, 1, None, 3, 2)
    assert receipt(later, 41, 2, b"t/2/") == {
        "chronos-id": b"id",
        "chronos-due-at": b"7",
        "chronos-source": b"t/2/41",
        "chronos-occurrence": b"3",
        "chronos-attempt": b"2",
    }
    assert entry_id(later, 2, 41) == b"id"


def test_a_reason_has_a_label_and_fits_in_one_byte() -> None:
    assert Reason.TOO_LATE.label == "too-late"
    assert all(0 < reason < 128 for reason in Reason)
