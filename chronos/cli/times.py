"""Times and durations of the command line. Bare numbers are refused: their unit is never guessed."""

import time

import typer

from chronos.client.times import delay_ms, time_ms
from chronos.core.timefmt import format_time


def check_when(at: str | None, delay: str | None) -> None:
    """Exactly one of `--at` and `--in`, and a valid one; typer.BadParameter otherwise."""
    if at is not None and delay is not None:
        raise typer.BadParameter("--in and --at are both given; give one of them")
    if at is None and delay is None:
        raise typer.BadParameter("give a time: --in 90s, or --at 2030-01-31T09:00:00+01:00")
    check_time(at, "--at")
    check_delay(delay, "--in")


def check_delay(text: str | None, option: str) -> None:
    """A duration; typer.BadParameter, which names the option, otherwise."""
    try:
        if text is not None:
            delay_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def check_time(text: str | None, option: str) -> None:
    """A time in RFC 3339; typer.BadParameter, which names the option, otherwise."""
    try:
        if text is not None:
            time_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def moment(text: str | None, option: str) -> str | None:
    """RFC 3339 from RFC 3339, `now`, or a time before or after now: `-2h`, `+30m`."""
    if text is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    try:
        if text == "now":
            return format_time(now_ms)
        if text[:1] == "-":
            return format_time(max(0, now_ms - delay_ms(text[1:])))
        if text[:1] == "+":
            return format_time(now_ms + delay_ms(text[1:]))
        time_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}; relative to now: -2h, now, +30m") from None
    return text
