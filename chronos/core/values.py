"""The values of control headers, decoded for the parsers and named in their messages to users.
Which header may have which value is decided in `core.shard.parsing`."""

from collections.abc import Mapping

from chronos.core.message import Reason, Rejection
from chronos.core.timefmt import BeyondAll, parse_time_ms


def text_of(raw: bytes | None) -> str:
    """Return the text of a control header. Raises ValueError, with a text for users, unless it is
    UTF-8."""
    if raw is None:
        raise ValueError("null is not a value")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{shown(raw)} is not UTF-8") from None


def time_of(raw: bytes | None, timestamp_ms: int, min_time_ms: int) -> int:
    """Return the epoch ms of a control header of a record of `timestamp_ms`. Raises ValueError,
    with a text for users."""
    text = text_of(raw)
    time_ms = parse_time_ms(text)
    if time_ms < min_time_ms <= timestamp_ms and text.isdigit():
        raise ValueError(f"{text} looks like seconds; a number is taken as epoch milliseconds")
    return time_ms


def bad_value(name: str, error: ValueError) -> Rejection:
    """Return the rejection of a control header whose value could not be read."""
    reason = Reason.BEYOND_MAX_DELAY if isinstance(error, BeyondAll) else Reason.BAD_VALUE
    return Rejection(reason, f"{name}: {error}")


def shown(raw: bytes | None) -> str:
    """Return the value as a text for users, shortened."""
    return "null" if raw is None else repr(raw[:80].decode("utf-8", "backslashreplace"))


def names(table: Mapping[bytes, object]) -> str:
    """Return the possible values as a text for users."""
    return ", ".join(name.decode() for name in table)


def label_of(table: Mapping[bytes, object], value: object) -> str:
    """Return the name of a value in the table."""
    return next(name for name, named in table.items() if named == value).decode()
