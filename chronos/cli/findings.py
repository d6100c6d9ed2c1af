"""What `chronos doctor` found: one line for each look, and how grave it is."""

from collections.abc import Callable, Generator
from typing import TypeVar

from msgspec import Struct

from chronos.errors import ChronosError, Retry, StoreCorrupt

T = TypeVar("T")


class Finding(Struct, frozen=True, kw_only=True):
    """What one look found."""

    what: str
    verdict: str
    """ok, note, or problem."""
    text: str
    exit_code: int = 0


def ok(what: str, text: str) -> Finding:
    """As it should be."""
    return Finding(what=what, verdict="ok", text=text)


def note(what: str, text: str) -> Finding:
    """Not wrong, but good to know."""
    return Finding(what=what, verdict="note", text=text)


def problem(what: str, text: str, *, exit_code: int = 1) -> Finding:
    """Wrong."""
    return Finding(what=what, verdict="problem", text=text, exit_code=exit_code)


def failed(what: str, error: ChronosError) -> Finding:
    """An error as a finding."""
    later = " It may pass." if isinstance(error, Retry) else ""
    damage = "damaged: " if isinstance(error, StoreCorrupt) else ""
    return problem(what, f"{damage}{error}{later}", exit_code=error.exit_code)


def guarded(what: str, look: Callable[[], T]) -> Generator[Finding, None, T | None]:
    """The result; a failure becomes a finding, and None."""
    try:
        return look()
    except ChronosError as error:
        yield failed(what, error)
        return None
