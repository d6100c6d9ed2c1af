"""Words that Chronos does not use: each has a standard term, which stands beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

STRUCK = {
    r"(?<!sign of )(?<!signs of )\blife\b(?= of (a|the) (process|node))": "incarnation",
    r"\b[fF]arewell\b(?!\")": "leave record",
    r"\bSeat\b": "registration",
    r"\bSeal\b": "signature",
    r"\bnamesake\b": "the node with the same name or address",
    r"\brival\b": "the other one",
    r"\bsuspicion\b": "what is suspected",
    r"\b[Ss]trangers?\b": "untrusted client",
    r"\bmessages (die|died)\b": "messages fail",
    r"\b(lost|early)(,| or| and) doubled\b": "duplicated",
    r"two looks did not": "the topic does not exist",
    r"\bnone of them is blamed\b|\bjudges nobody\b": (
        "say what is counted, and against which broker"
    ),
    r"\bexactly once rests on\b": "depends on",
}
"""Pattern -> the term to use instead."""

PLACES = [
    *sorted((ROOT / "chronos").rglob("*.py")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
]


@pytest.mark.parametrize("pattern", STRUCK)
def test_a_struck_word_is_not_used(pattern: str) -> None:
    """In code, texts and documentation."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in PLACES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == [], f"write: {STRUCK[pattern]}"


def test_a_rule_is_written_out_in_the_code() -> None:
    """Numbers of rules belong to docs/contributing/conformance.md: a reader of the code has not the
    list beside it."""
    numbers = re.compile(r"\b(HA|DL|RH|LF|CH|NS)-[0-9]")
    code = [path for path in PLACES if path.suffix == ".py"]
    assert [path.name for path in code if numbers.search(path.read_text())] == []
