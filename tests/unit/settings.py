"""How many examples Hypothesis generates: `@examples(150, 1_500)`.

`TEST_EXAMPLES` chooses: unset or `fast` takes the first number, `whole` the second, a number
replaces both (`TEST_EXAMPLES=20000 pytest tests/unit` searches longer)."""

from __future__ import annotations

import os

from hypothesis import settings

CHOSEN = os.environ.get("TEST_EXAMPLES", "fast")


def examples(fast: int, whole: int) -> settings:
    """A decorator that sets the number of examples of a test."""
    number = {"fast": fast, "whole": whole}.get(CHOSEN)
    return settings(max_examples=int(CHOSEN) if number is None else number)
