"""The options of `chronos backfill`: which requests they make, and which combinations are refused.
Needs no Spark."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from chronos.cli.spark.backfill import BackfillOptions, request_of
from chronos.spark.request import BackfillRequest


def asked(**changed: Any) -> BackfillRequest:
    """As the command line gives it."""
    usual: dict[str, Any] = {
        "modes": {"missing": False, "all": False, "gone": False, "pending": False},
        "start": "-2h",
        "end": None,
        "targets": [],
        "headers": [],
        "ids": [],
        "purpose": "backfill",
        "over": None,
        "rate": None,
        "direct": False,
        "expired": False,
    }
    return request_of(BackfillOptions(**{**usual, **changed}))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"modes": {"missing": True, "all": True}}, "choose one of"),
        ({"modes": {"all": True}, "start": None}, "--from"),
        ({"modes": {"gone": True}}, "--target"),
        ({"modes": {"rejected": True}}, "--rejected needs --reason"),
        ({"modes": {"dead-letters": True}, "reasons": ["x"]}, "no such reason"),
        ({"reasons": ["past"]}, "--reason needs"),
        ({"modes": {"pending": True}, "rate": 5.0}, "--pending keeps"),
        ({"modes": {"pending": True}, "to_topic": "t"}, "no --to-topic"),
        ({"to_topic": "a b"}, "--to-topic"),
        ({"modes": {"pending": True}, "to_cluster": "c.yaml"}, "not as --to-cluster"),
        ({"purpose": "a/b"}, "--purpose"),
        ({"over": "30m", "rate": 1.0}, "choose one of"),
        ({"over": "soon"}, "--over"),
        ({"over": "2"}, "--over or --id: 2 has no unit"),
        ({"start": "-90"}, "--from: 90 has no unit"),
        ({"rate": 0.0}, "--rate"),
        ({"headers": ["x"]}, "--header"),
        ({"start": "2030-01-02T00:00:00Z", "end": "2030-01-01T00:00:00Z"}, "before --to"),
    ],
)
def test_what_does_not_fit_together_is_refused(changed: dict[str, Any], says: str) -> None:
    """Before Spark is started."""
    with pytest.raises(typer.BadParameter, match=says):
        asked(**changed)


def test_every_header_that_was_given_is_asked_for() -> None:
    """Also two of the same name."""
    assert asked(headers=["a=1", "b=", "a=2"]).headers == [("a", "1"), ("b", ""), ("a", "2")]


def test_the_same_words_are_the_same_request() -> None:
    """Also when `-2h` means another time: who repeats the command ends what was begun."""
    first, second = asked(over="30m", ids=["base64:/w=="]), asked(over="30m", ids=["base64:/w=="])
    assert first.options == second.options != asked().options
    # An option of a later version does not change what the earlier ones wrote.
    assert asked(compacted=True).options == [*asked().options, "compacted"]
    assert asked(modes={"rejected": True}, reasons=["past"]).options[-1] == "reason=past"
    assert asked(to_topic="t").options == [*asked().options, "to-topic=t"]
    assert (first.over_ms, first.ids) == (1_800_000, ["ff"])
