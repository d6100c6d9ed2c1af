"""Filters of requests as filters of the core, with every error by field."""

from collections.abc import Callable, Iterable

from msgspec import UNSET, UnsetType

from chronos.admin.encoding import id_bytes, to_bytes
from chronos.admin.problems import wrong_field
from chronos.admin.scheduling import time_ms
from chronos.core.filter import Filter
from chronos.core.timefmt import MS_MAX


def to_filter(
    *,
    target: str | UnsetType = UNSET,
    due_from: int | str | UnsetType = UNSET,
    due_to: int | str | UnsetType = UNSET,
    id_prefix: str | UnsetType = UNSET,
    headers: Iterable[tuple[str, str]] = (),
    within: str = "",
) -> Filter:
    """The filter; ProblemError with status 422 for a value that is not valid. `within`: the field that holds these."""
    return Filter(
        target=None if target is UNSET else target,
        due_from_ms=_time_ms(f"{within}due_from", due_from, 0),
        due_to_ms=_time_ms(f"{within}due_to", due_to, MS_MAX + 1),
        id_prefix=b"" if id_prefix is UNSET else _bytes(f"{within}id_prefix", id_bytes, id_prefix),
        headers=tuple((name, _bytes(f"{within}header", to_bytes, value)) for name, value in headers),
    )


def _time_ms(field: str, value: int | str | UnsetType, default_ms: int) -> int:
    try:
        return default_ms if value is UNSET else time_ms(value)
    except ValueError as error:
        raise wrong_field(field, str(error)) from None


def _bytes(field: str, convert: Callable[[str], bytes], text: str) -> bytes:
    try:
        return convert(text)
    except ValueError as error:
        raise wrong_field(field, str(error)) from None
