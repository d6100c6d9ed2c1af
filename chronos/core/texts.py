"""Texts for people: numbers of shards in few words, and any text as a terminal may show it."""

from collections.abc import Iterable


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
