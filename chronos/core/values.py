"""Values of control headers as texts, for the parsers and their messages to users, and any text as
a terminal may show it."""

from collections.abc import Iterable, Mapping

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


def shards_text(numbers: Iterable[int]) -> str:
    """Return `shard 3`, or `shards 0 to 3, 7`, for people."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    names = ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )
    return f"{'shard' if sum(map(len, runs)) == 1 else 'shards'} {names}"


def printable(text: str) -> str:
    """Return the text with its control characters escaped, so that they have no effect on a
    terminal."""
    return (
        text
        if text.isprintable()
        else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    )


def printable_json(text: str) -> str:
    """Return JSON with the same value, in which strings have no control character that a terminal
    knows: JSON escapes C0 only."""
    return (
        text
        if text.isprintable()
        else "".join(char if char.isprintable() else _unicode(char) for char in text)
    )


def _unicode(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def names(table: Mapping[bytes, object]) -> str:
    """Return the possible values as a text for users."""
    return ", ".join(name.decode() for name in table)


def label_of(table: Mapping[bytes, object], value: object) -> str:
    """Return the name of a value in the table."""
    return next(name for name, found in table.items() if found == value).decode()
