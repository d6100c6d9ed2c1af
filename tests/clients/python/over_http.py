"""Chronos over HTTP: records of the delay topic as requests. The address of the service takes the
place of the broker's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import chronos
from chronos import Client
from tests.clients.python.lines import Program, Record, run


def version() -> str:
    """The version of Chronos."""
    return chronos.__version__


def write(address: str, topic: str, records: list[Record], ending: str) -> None:
    """Schedule, replace, reschedule and cancel."""
    assert not ending
    with Client(address) as client:
        many: list[dict[str, Any]] = []
        for record in records:
            name, headers = (
                record.key,
                {header: (value or b"").decode() for header, value in record.headers},
            )
            action = headers.get(
                "chronos-action", "schedule" if "chronos-deliver-at" in headers else "cancel"
            )
            assert name is not None
            due = datetime.fromtimestamp(0, UTC) + timedelta(
                milliseconds=int(headers.get("chronos-deliver-at", 0))
            )
            if action == "cancel":
                assert client.cancel(name), name
            elif action == "reschedule":
                assert client.reschedule(name, deliver_at=due), name
            else:
                made = chronos.message(
                    headers["chronos-target-topic"],
                    record.value,
                    deliver_at=due,
                    id=name,
                    on_conflict="replace" if action == "replace" else "reject",
                )
                many.append(dict(made))
        if many:
            client.schedule_many(many)


def read(address: str, topic: str, seen: Callable[[bytes], bool]) -> None:
    """Not over HTTP: its topics are those of the embedded log."""
    raise NotImplementedError


if __name__ == "__main__":
    run(Program(version, write, read))
