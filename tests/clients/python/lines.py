"""Input and output of the programs; `tests/clients/programs.py` describes both."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import NamedTuple


class Record(NamedTuple):
    """A record to write."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Program(NamedTuple):
    """What a program does, apart from its input and output."""

    version: Callable[[], str]
    write: Callable[[str, str, list[Record], str], None]
    """Takes the broker, the topic, the records, and the end of the transaction: `commit`, `abort`
    or empty for none."""
    read: Callable[[str, str, Callable[[bytes], bool]], None]
    """Takes the broker, the topic, and a function that is called with each value until it returns
    False."""


def records() -> list[Record]:
    """The records of the standard input."""
    found = []
    for line in sys.stdin:
        each = json.loads(line)
        headers = [(name, _bytes(value)) for name, value in each["headers"]]
        found.append(Record(_bytes(each["key"]), _bytes(each["value"]), headers))
    return found


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def run(program: Program) -> None:
    """Run a program with the arguments of this process."""
    verb, *rest = sys.argv[2:]
    if verb == "version":
        print(program.version())
    elif verb == "write":
        bootstrap, topic, *ending = rest
        found = records()
        program.write(bootstrap, topic, found, *(ending or [""]))
        print(json.dumps({"written": len(found)}))
    else:
        bootstrap, topic, end = rest

        def seen(value: bytes) -> bool:
            print(json.dumps({"value": base64.b64encode(value).decode()}))
            return value != end.encode()

        program.read(bootstrap, topic, seen)
