"""The findings of `chronos doctor`: one for each check, and how severe it is."""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from msgspec import Struct

from chronos.errors import ChronosError, Retry, StoreCorrupt

T = TypeVar("T")

ADVICE = re.compile(r" `chronos doctor` tells [^.]*\.")
"""What an error advises that is one of the findings here."""


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    what: str
    verdict: str
    """ok, note, or problem."""
    text: str
    exit_code: int = 0
    unchecked: bool = False
    """`text` names what could not be checked, and why."""


def ok(what: str, text: str) -> Finding:
    """All is well."""
    return Finding(what=what, verdict="ok", text=text)


def note(what: str, text: str) -> Finding:
    """Not a problem, but worth knowing."""
    return Finding(what=what, verdict="note", text=text)


def unchecked(what: str, text: str) -> Finding:
    """Something that could not be checked."""
    return Finding(what=what, verdict="note", text=f"not checked: {text}", unchecked=True)


def problem(what: str, text: str, *, exit_code: int = 1) -> Finding:
    """A problem."""
    return Finding(what=what, verdict="problem", text=text, exit_code=exit_code)


def failed(what: str, error: ChronosError) -> Finding:
    """An error as a finding."""
    later = " It may be temporary." if isinstance(error, Retry) else ""
    damage = "damaged: " if isinstance(error, StoreCorrupt) else ""
    return problem(what, f"{damage}{ADVICE.sub('', str(error))}{later}", exit_code=error.exit_code)


def guarded(what: str, check: Callable[[], T]) -> Generator[Finding, None, T | None]:
    """The result of the check; a failure becomes a finding, and the result is None."""
    try:
        return check()
    except ChronosError as error:
        yield failed(what, error)
        return None
