"""The client of the command line, and what goes between it and the options."""

import os

from chronos.client import Client, Refused

RETRIES = 1
"""Repetitions of a call: fewer than a program makes, because a person can try again."""

OPTIONS = {
    "filter.target": "--target",
    "filter.due_from": "--due-from",
    "filter.due_to": "--due-to",
    "filter.id_prefix": "--id-prefix",
    "filter.header": "--header",
    "filter.headers": "--header",
    "target.topic": "--to",
    "target.key": "--key",
    "target.key_base64": "--key",
    "target.headers": "--header",
    "id": "--id",
    "on_conflict": "--on-conflict",
    "expire_at": "--expire-at",
    "repeat_times": "--times",
    "repeat_until": "--until",
    "time_zone": "--time-zone",
    "late_policy": "--late-policy",
    "spread": "--spread",
    "value": "VALUE",
    "value_base64": "VALUE",
}
"""Fields of the HTTP interface, and the option each comes from."""


def connect(server: str, retries: int = RETRIES) -> Client:
    """A client for a service."""
    return Client(server, retries=retries)


def given(argument: str) -> str | bytes:
    """An argument as it was typed: text, or bytes that are not UTF-8."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return os.fsencode(argument)
    return argument


def worded(refused: Refused, *, by_delay: bool, repeat: str = "repeat") -> Refused:
    """The refusal with the names of options for those of fields.

    `by_delay`: the time was given by `--in`. `repeat`: the option by which a repetition was given.
    """
    if not refused.errors or any("index" in fault for fault in refused.errors):
        return refused
    names = {**OPTIONS, "deliver_at": "--in" if by_delay else "--at", "delay": "--in", "repeat": repeat}
    lines = []
    for fault in refused.errors:
        field = str(fault.get("field", ""))
        lines.append(f"{names.get(field, field)}: {fault['detail']}")
    return Refused("\n".join(lines), refused.errors)
