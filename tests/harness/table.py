"""Many cases of one rule in one test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from _pytest.mark import ParameterSet


def table(
    names: str | Sequence[str], cases: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but all cases are one test, which names each case that fails. A
    test of its own costs some milliseconds, which a case seldom needs.

    A fixture is the same one for all cases."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [ParameterSet.extract_from(case, force_tuple=len(keys) == 1) for case in cases]
    assert not any(row.marks for row in rows), "a case has no marks of its own"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def all_cases(**fixtures: Any) -> None:
            failures = []
            for row in rows:
                try:
                    test(**fixtures, **dict(zip(keys, row.values, strict=True)))
                except Exception as error:
                    error.add_note(f"case: {row.id or repr(row.values)[:200]}")
                    failures.append(error)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(rows)} cases", failures)

        signature = inspect.signature(test)
        fixtures = [each for name, each in signature.parameters.items() if name not in keys]
        all_cases.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return all_cases

    return decorate
