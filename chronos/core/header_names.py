"""The names of headers: which of Chronos's a name stands for, in any case and with `_` for `-`."""

from chronos.core.message import FORWARDED, PREFIX, RECEIPT, RESOLUTION, RESOLVED, SCHEDULING

HEADERS = SCHEDULING | RECEIPT | {FORWARDED, RESOLUTION, RESOLVED}
"""Every header that Chronos reads or writes, as it spells them."""

_WRITTEN_BY_USERS = sorted(SCHEDULING) + sorted(RECEIPT)
_LENGTHS = range(min(map(len, HEADERS)) - 1, max(map(len, HEADERS)) + 2)


def header_of(name: str) -> str | None:
    """Return the header of Chronos that a name stands for; None if the name is the producer's own.

    Raises ValueError, with a text for users, for a name that stands for none and begins like one, or is one edit away from one.
    """
    folded = folded_name(name)
    if folded in HEADERS:
        return folded
    meant = _nearest(folded)
    if meant is None and not folded.startswith(PREFIX):
        return None
    raise ValueError(f"{name[:80]} is not a header of Chronos" + (f"; did you mean {meant}?" if meant else ""))


def folded_name(name: str) -> str:
    """Return the name in lower case, with `-` for `_`, if it is ASCII."""
    return name.lower().replace("_", "-") if name.isascii() else name


def _nearest(name: str) -> str | None:
    """Return the header that the name becomes when one character is added, removed, replaced or moved."""
    if len(name) not in _LENGTHS:
        return None
    return next((_NEAR[each] for each in _with_one_less(name) if each in _NEAR), None)


def _with_one_less(name: str) -> list[str]:
    """Return the name, and the name without each of its characters."""
    return [name, *(name[:at] + name[at + 1 :] for at in range(len(name)))]


_NEAR = {each: header for header in reversed(_WRITTEN_BY_USERS) for each in _with_one_less(header)}
