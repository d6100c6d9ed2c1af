"""What the verbs for dead letters and for rejected records show alike."""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chronos.cli.output import NOT_SHOWN, note, printable, size
from chronos.client.dead_letters import PAGE_LETTERS

SHOWN_CHARACTERS = 1_000
"""Characters of a payload that are shown."""


def read_pages(
    ask: Callable[[int, str | None], dict[str, Any]], name: str, limit: int
) -> tuple[list[dict[str, Any]], str | None, int]:
    """At most `limit` letters of as many pages as that takes, the key of the next page, and the number of records read.

    `ask`: returns a page of at most so many letters, after a key. `name`: of the letters in it.
    """
    found: list[dict[str, Any]] = []
    after, records = None, 0
    while len(found) < limit:
        page = ask(min(PAGE_LETTERS, limit - len(found)), after)
        found += page[name]
        after, records = page["after"], records + page["records"]
        if after is None:
            break
    return found, after, records


def note_more(after: str | None, limit: int) -> None:
    """Say how more letters are shown, if there may be more."""
    if after is not None:
        note(f"there may be more; show them with -n {limit * 10}, or --until the time of the last one")


def header_facts(headers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """One row for each header."""
    for name, content in headers.items():
        for one in content if isinstance(content, list) else [content]:
            yield "header", printable(f"{name}={one if isinstance(one, str) else repr(one)}")


def payload_facts(value_bytes: int | None, value: str | None, value_base64: str | None) -> Iterator[tuple[str, str]]:
    """The size of a payload and its beginning; neither `value` nor `value_base64`: it is not shown."""
    yield "payload", "null" if value_bytes is None else size(value_bytes)
    if value_bytes:
        text = value if value_base64 is None else str(base64.b64decode(value_base64))
        yield "", NOT_SHOWN if text is None else printable(text[:SHOWN_CHARACTERS])
