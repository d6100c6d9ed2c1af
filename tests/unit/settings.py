"""How many examples Hypothesis generates: `@examples(1_500)` in a full run, and few in a fast one.

`TEST_EXAMPLES` chooses: unset or `fast` takes a few, `whole` the number of the test, a number
replaces both (`TEST_EXAMPLES=20000 pytest tests/unit` searches longer)."""

from __future__ import annotations

import os

from hypothesis import settings

CHOSEN = os.environ.get("TEST_EXAMPLES", "fast")

FEW = 15


def examples(whole: int) -> settings:
    """A decorator that sets the number of examples of a test."""
    number = {"fast": FEW, "whole": whole}.get(CHOSEN)
    return settings(max_examples=int(CHOSEN) if number is None else number)
