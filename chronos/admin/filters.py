"""Filters of requests as filters of the core, with every error by field."""

from collections.abc import Iterable

from msgspec import UNSET, UnsetType

from chronos.admin.access import check_target, forbidden
from chronos.admin.encoding import id_bytes, to_bytes
from chronos.admin.problems import converted
from chronos.admin.scheduling import time_ms
from chronos.admin.tokens import Sender
from chronos.core.filter import Filter
from chronos.core.timefmt import MS_MAX


def to_filter(
    sender: Sender,
    *,
    target: str | UnsetType = UNSET,
    due_from: int | str | UnsetType = UNSET,
    due_to: int | str | UnsetType = UNSET,
    id_prefix: str | UnsetType = UNSET,
    key: str | UnsetType = UNSET,
    headers: Iterable[tuple[str, str]] = (),
    within: str = "",
) -> Filter:
    """The filter of a sender, true of nothing but its own messages. `within`: the field that holds these.

    ProblemError: 422 for a value that is not valid; 403 for a target that is not the sender's own, and for headers if it may not
    see them.
    """
    headers = tuple(headers)
    if target is not UNSET:
        check_target(sender, target)
    if headers and not sender.sees_payloads:
        raise forbidden(sender, "may not see headers", hint="a condition on headers needs the role payload")
    return Filter(
        reach=sender.reach,
        target=None if target is UNSET else target,
        due_from_ms=0 if due_from is UNSET else converted(f"{within}due_from", time_ms, due_from),
        due_to_ms=MS_MAX + 1 if due_to is UNSET else converted(f"{within}due_to", time_ms, due_to),
        id_prefix=b"" if id_prefix is UNSET else converted(f"{within}id_prefix", id_bytes, id_prefix),
        key=None if key is UNSET else converted(f"{within}key", id_bytes, key),
        headers=tuple((name, converted(f"{within}header", to_bytes, value)) for name, value in headers),
    )
