"""Reminders at a wall-clock time in the customer's time zone, moved along when the customer moves.

    python reminders.py [--server URL]

Plays a story against a running Chronos on its embedded log: Ana wants to be reminded at a
wall-clock time, and flies from Lisbon to Tokyo.

A customer means a wall-clock time and a zone, and `Reminder` keeps both. The instant is derived
from them, and derived again whenever the zone changes. Chronos gets instants only."""

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from chronos import Client
from chronos.client import NotFound

TOPIC = "reminders"
PATIENCE_S = 30.0
"""How long the play waits for what must come."""


@dataclass(frozen=True)
class Reminder:
    """A wall-clock time in a zone, as the customer gave it."""

    customer: str
    name: str
    wall: datetime
    """The wall-clock time, without a zone."""
    zone: str
    """By name, such as Europe/Lisbon: an offset would be wrong after the next change of the
    clocks."""

    @property
    def id(self) -> str:
        """The id of its message. It does not depend on the time, so that the time can be
        changed."""
        return f"reminder-{self.customer}-{self.name}"


def instant(wall: datetime, zone: str) -> datetime:
    """The one point in time that is meant, in UTC.

    In a gap (clocks go forward, 01:30 is skipped) the offset from before is used: 01:30 becomes
    02:30, later by the length of the gap. In an overlap (clocks go back, 01:30 comes twice) the
    first one is used: early is better than late. `fold=0` means exactly these two choices; it is
    written out because both are decisions."""
    assert wall.tzinfo is None, "a wall-clock time has no zone; `zone` has it"
    return wall.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)


def oddity(wall: datetime, zone: str) -> str | None:
    """`gap` when the zone's clocks never show this time, `overlap` when they show it twice, else
    None."""
    first, second = (wall.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return None
    shown = first.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    return "overlap" if shown == wall else "gap"


class Reminders:
    """All reminders of all customers. A real service keeps `reminders` in its database."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.reminders: dict[str, Reminder] = {}

    def set(self, reminder: Reminder) -> datetime:
        """Set a reminder, or replace it; returns when it is due."""
        due = instant(reminder.wall, reminder.zone)
        payload = json.dumps({"customer": reminder.customer, "name": reminder.name})
        self._client.schedule(
            TOPIC,
            payload,
            deliver_at=due,
            id=reminder.id,
            key=reminder.customer,
            on_conflict="replace",
        )
        self.reminders[reminder.id] = reminder
        return due

    def move(self, customer: str, zone: str) -> list[tuple[Reminder, datetime]]:
        """Move the customer's reminders to the same wall-clock times in another zone; returns those
        that were moved.

        A time that has already passed there is delivered at once, as a reminder should be. A
        reminder that was delivered in the meantime is no longer pending, and is not moved."""
        moved = []
        for reminder in [each for each in self.reminders.values() if each.customer == customer]:
            there = replace(reminder, zone=zone)
            due = instant(there.wall, zone)
            if self._client.reschedule(reminder.id, deliver_at=due):
                self.reminders[reminder.id] = there
                moved.append((there, due))
        return moved

    def drop(self, reminder: Reminder) -> bool:
        """Cancel a reminder; returns whether it was still pending."""
        del self.reminders[reminder.id]
        return bool(self._client.cancel(reminder.id))


def delivered(client: Client, customer: str) -> dict[str, str]:
    """Wait for the customer's next reminder; returns its name and, from its receipt, when it was
    due."""
    offset, deadline = None, time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            found = client.records(TOPIC, offset=offset, wait="1s")
        except NotFound:  # the first record creates the topic
            time.sleep(0.1)
            continue
        offset = found["next_offset"]
        for record in found["records"]:
            if record["key"] == customer:
                name = json.loads(record["value"])["name"]
                return {"name": name, "due_ms": record["headers"]["chronos-due-at"]}
    raise SystemExit(f"nothing came for {customer} within {PATIENCE_S:g} s")


def main() -> int:
    """0 when everything went as it should."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server", help="address of Chronos; default: $CHRONOS_SERVER or http://127.0.0.1:7700"
    )
    arguments = parser.parse_args()
    ana = f"ana-{time.time_ns() // 1_000_000:x}"  # a customer of its own for every play

    with Client(arguments.server) as client:
        service = Reminders(client)
        # Three seconds from now on a wall in Tokyo; on a wall in Lisbon that time is still hours
        # away.
        wall = datetime.now(ZoneInfo("Asia/Tokyo")).replace(tzinfo=None, microsecond=0) + timedelta(
            seconds=3
        )
        pills = Reminder(ana, "pills", wall, "Europe/Lisbon")
        letter = Reminder(ana, "letter", wall + timedelta(days=30), "Europe/Lisbon")
        for reminder in (pills, letter):
            due = service.set(reminder)
            print(
                f"set    {reminder.name}: {reminder.wall} in {reminder.zone}, which is "
                f"{due:%Y-%m-%d %H:%M:%S} UTC"
            )
        for reminder, due in service.move(ana, "Asia/Tokyo"):
            print(
                f"moved  {reminder.name}: {reminder.wall} in {reminder.zone}, which is "
                f"{due:%Y-%m-%d %H:%M:%S} UTC"
            )
        came = delivered(client, ana)
        due = datetime.fromtimestamp(int(came["due_ms"]) / 1_000, ZoneInfo("Asia/Tokyo"))
        print(f"came   {came['name']}: due {due:%Y-%m-%d %H:%M:%S} on the wall in Tokyo")
        print(f"drop   {letter.name}: {'cancelled' if service.drop(letter) else 'too late'}")
        return 0 if came["name"] == "pills" and due.replace(tzinfo=None) == wall else 1


if __name__ == "__main__":
    sys.exit(main())
