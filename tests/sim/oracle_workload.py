"""The producers of the oracle: every header, action and mistake, on few ids and close times, so
that collisions are frequent.

Each record is written together with the `Command` that the documentation says it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.sim.broker import DEAD_LETTER, DELAY, REJECTED, Brokers, Transaction
from tests.sim.log import POISON
from tests.sim.oracle_model import Service
from tests.sim.oracle_series import Rhythm
from tests.sim.oracle_targets import Targets
from tests.sim.oracle_values import SKEW_MS, Command, Pairs
from tests.sim.world import World

TARGETS = ("a", "a", "a", "b", "keyed", "tiny", "limited", "flaky")
"""Targets of messages; their faults are in `oracle.Targets`."""

MAX_DELAY_MS = 40 * 86_400_000
MAX_PAST_MS = 10 * 86_400_000
ATTEMPTS_MAX = 3

FLAWS = {
    "unknown-header": [("chronos-wish", b"1")],
    "repeated-header": [("chronos-target-topic", b"a")],
    "contradictory-headers": [("chronos-deliver-at", b"1900000000000"), ("chronos-delay", b"5s")],
    "bad-value": [("chronos-spread", b"soon")],
}
"""Reason -> headers that are added to those of a message."""


@dataclass(kw_only=True)
class Habits:
    """How often the producers of a seed do what."""

    ids: int
    keyed: float
    actions: float
    elsewhere: float
    """Records with an id that are written to any partition."""
    flawed: float
    poison: float
    series: float
    expiring: float
    spread: float
    hops: float
    """Records with a hop of the producer's own."""
    transactions: float
    unreadable: float
    near_ms: int

    @classmethod
    def draw(cls, dice: Random, shards: int) -> Habits:
        """Draw the habits of a seed."""
        return cls(
            ids=dice.choice([1, 2, 4, 8]),
            keyed=dice.choice([0.3, 0.7, 1.0]),
            actions=dice.choice([0.2, 0.5, 0.7]),
            elsewhere=dice.choice([0.0, 0.3, 0.7]) if shards > 1 else 0.0,
            flawed=dice.choice([0.0, 0.1]),
            poison=dice.choice([0.0, 0.0, 0.1]),
            series=dice.choice([0.0, 0.1, 0.3]),
            expiring=dice.choice([0.0, 0.2]),
            spread=dice.choice([0.0, 0.2]),
            hops=dice.choice([0.0, 0.0, 0.1]),
            transactions=dice.choice([0.0, 0.0, 0.2]),
            unreadable=dice.choice([0.0, 0.0, 0.03]),
            near_ms=dice.choice([300, 2_000, 20_000]),
        )


class Producers:
    """Writes records to the delay topic."""

    def __init__(
        self,
        world: World,
        brokers: Brokers,
        service: Service,
        targets: Targets,
        dice: Random,
        *,
        seed: int,
    ) -> None:
        self.world = world
        self.targets = targets
        self.brokers = brokers
        self.service = service
        self.shards = service.terms.shards
        self.dice = dice
        self.habits = Habits.draw(dice, self.shards)
        self.ids = [b"id-%d" % number for number in range(self.habits.ids)]
        self.named: list[bytes] = list(self.ids)
        """Every id that was ever used."""
        self.sent = 0
        self.transaction: Transaction | None = None
        self.names_dice = Random(f"names {seed}")
        self.misspelled = self.names_dice.choice([0.0, 0.2, 0.5])
        """Records whose headers are in another case, or have `_` for `-`."""
        self.long_past = self.names_dice.choice([0.0, 0.1])
        """Messages and changes to a time that is refused because it is too long ago, or accepted as
        a backfill."""
        self.upsert_dice = Random(f"upserts {seed}")
        self.upserts = self.upsert_dice.choice([0.0, 0.2, 0.6])
        """Messages with an id that are upserts."""
        self.upserted: dict[bytes, tuple[Command, Pairs]] = {}
        """The last upsert of each id."""
        self.call_dice = Random(f"calls {seed}")
        self.calls = self.call_dice.choice([0.0, 0.5, 0.9])
        """Records that name their call."""
        self.repeats = self.call_dice.choice([0.05, 0.3])
        """Records that repeat one of the last calls."""
        self.called: list[tuple[Command, Pairs, bytes | None]] = []
        self.ends_series = False
        """New series have an end."""

    def send(self) -> None:
        """Write one record, a transaction of some, or a batch that cannot be read."""
        dice = self.dice
        if dice.random() < self.habits.unreadable:
            self._send_unreadable()
        elif self.world.faulty and dice.random() < self.habits.transactions:
            self.transaction = Transaction(None, 0)
            for _ in range(dice.randint(1, 3)):
                self._send_one()
            self.world.after(
                dice.choice([1, 50, 900, 4_000]), self._end, self.transaction, dice.random() < 0.7
            )
            self.transaction = None
        else:
            self._send_one()

    def _end(self, transaction: Transaction, commit: bool) -> None:
        if transaction.state == "open":
            self.brokers.decide(transaction, commit=commit)

    def _send_unreadable(self) -> None:
        """Write a batch of up to three records that no reader can decompress."""
        shard, count = self.dice.randrange(self.shards), self.dice.randint(1, 3)
        partition = self.brokers.topics[DELAY][shard]
        first = partition.high
        partition.unreadable |= dict.fromkeys(
            range(first, first + count), (first, first + count - 1)
        )
        for offset in range(first, first + count):
            self.brokers.append(partition, b"id-0", b"unreadable", [])
            self.service.commands[shard, offset] = Command(flaw="unreadable")

    def _send_one(self) -> None:
        dice = self.dice
        if self.called and self.call_dice.random() < self.repeats:
            command, headers, key = self.call_dice.choice(self.called[-6:])
            self._write(self._partition(command), command, [*headers], key)
        elif dice.random() < 0.02:
            self._write(
                dice.randrange(self.shards),
                Command(verb="probe"),
                [("chronos-action", b"probe")],
                None,
            )
        elif dice.random() < self.habits.flawed:
            self._send_flawed()
        elif dice.random() < self.habits.actions:
            self._send_action()
        else:
            self._send_message("replace" if dice.random() < 0.1 else "schedule")

    def cancel_series(self) -> None:
        """Cancel every series without an end, at its own partition."""
        for shard in self.service.shards:
            for message in list(shard.pending.values()):
                rhythm = message.command.rhythm
                if rhythm is not None:
                    headers: Pairs = [("chronos-action", b"cancel"), ("chronos-id", message.id)]
                    key = message.id if message.command.is_keyed else None
                    command = Command(verb="cancel", id=message.id, is_keyed=key is not None)
                    self._write(shard.number, command, headers if key is None else headers[:1], key)

    # Messages

    def _due_ms(self) -> int:
        dice, now_ms = self.dice, self.world.now_ms
        kind = dice.random()
        if kind < 0.1:
            return now_ms - dice.randrange(1, 100_000)
        if kind < 0.15:
            return now_ms + dice.randrange(600_000, 7_200_000)
        return now_ms + dice.randrange(self.habits.near_ms)

    def _message(self, verb: str) -> tuple[Command, Pairs, bytes | None]:
        dice, habits = self.dice, self.habits
        keyed = verb == "replace" or dice.random() < habits.keyed
        key = dice.choice(self.ids) if keyed else None
        target = dice.choice(TARGETS)
        value = dice.choice([b"", b"v%d" % self.sent, None, b"x" * 1_000])
        if dice.random() < habits.poison:
            value = POISON
            self.targets.poisoned.add(target)
        due_ms, now_ms = self._due_ms(), self.world.now_ms
        own: Pairs = [("trace", b"%d" % self.sent)]
        own += dice.choice([[], [], [("twice", b"1"), ("twice", None)], [("null", None)]])
        command = Command(
            verb=verb,
            id=key,
            is_keyed=keyed,
            target=target,
            value=value,
            headers=own,
            target_key=dice.choice([None, b"k1", b"k2", b""]),
        )
        headers: Pairs = [*own, ("chronos-target-topic", target.encode())]
        if dice.random() < 0.3 and due_ms >= now_ms:
            command = replace(command, delay_ms=due_ms - now_ms)
            headers.append(("chronos-delay", b"%dms" % (due_ms - now_ms)))
        else:
            command = replace(command, at_ms=due_ms)
            headers.append(("chronos-deliver-at", b"%d" % due_ms))
        if command.target_key is not None:
            headers.append(("chronos-target-key", command.target_key))
        if dice.random() < habits.spread:
            command = replace(command, spread_ms=dice.choice([1, 300, 5_000]))
            headers.append(("chronos-spread", b"%dms" % command.spread_ms))
        if dice.random() < habits.series:
            command = replace(command, rhythm=self._rhythm(due_ms))
            assert command.rhythm is not None
            if command.delay_ms is not None and command.rhythm.until_ms:
                # A delay counts from the time of a broker, whose clock may be ahead.
                later = replace(command.rhythm, until_ms=command.rhythm.until_ms + 2 * SKEW_MS)
                command = replace(command, rhythm=later)
            assert command.rhythm is not None
            headers += command.rhythm.headers()
        if command.rhythm is not None and command.rhythm.kind == "cron" and dice.random() < 0.3:
            rhythm = replace(command.rhythm, until_ms=0)
            command = replace(command, at_ms=None, delay_ms=None, rhythm=rhythm)
            headers = [pair for pair in headers if pair[0] != "chronos-repeat-until"]
            headers = [
                pair for pair in headers if pair[0] not in ("chronos-deliver-at", "chronos-delay")
            ]
        if dice.random() < habits.expiring and command.at_ms is not None:
            expire_at_ms = due_ms + command.spread_ms + dice.choice([0, 100, 3_000])
            command = replace(command, expire_at_ms=expire_at_ms)
            headers.append(("chronos-expire-at", b"%d" % expire_at_ms))
        if dice.random() < 0.2:
            command = replace(command, attempts_max=dice.choice([1, 2, 3]))
            headers.append(("chronos-attempts", b"%d" % command.attempts_max))
        if verb == "schedule" and keyed and dice.random() < 0.5:
            command = replace(command, on_conflict=dice.choice(["reject", "replace", "ignore"]))
            headers.append(("chronos-on-conflict", command.on_conflict.encode()))
        if verb != "schedule":
            headers.append(("chronos-action", verb.encode()))
        if dice.random() < 0.1:
            # A consumer sends a message again: its receipt is dropped.
            headers += [
                ("chronos-due-at", b"5"),
                ("chronos-source", b"delay/0/5"),
                ("chronos-attempt", b"2"),
            ]
            if key is None:
                headers.append(("chronos-id", b"another"))
        return command, headers, key

    def _rhythm(self, due_ms: int) -> Rhythm:
        dice = self.dice
        kind = dice.choice(["every", "every", "backoff", "cron"])
        base_ms = (
            dice.choice([2_000, 5_000, 20_000])
            if kind == "cron"
            else dice.choice([300, 700, 20_000])
        )
        ends = self.ends_series or dice.random() < 0.7
        factor, cap_ms = dice.choice([1, 2, 3]), base_ms * dice.choice([1, 5, 50])
        if kind != "backoff":  # rhythms are compared, and others have neither
            factor, cap_ms = 1, 0
        return Rhythm(
            kind=kind,
            base_ms=base_ms,
            factor=factor,
            cap_ms=cap_ms,
            times=dice.randint(1, 5) if ends else 0,
            until_ms=due_ms + dice.randrange(60_000) if dice.random() < 0.2 else 0,
            late_policy=dice.choice(["fire-once", "fire-all", "skip"]),
        )

    def _send_message(self, verb: str) -> None:
        command, headers, key = self._message(verb)
        if verb == "schedule" and key and self.upsert_dice.random() < self.upserts:
            command, headers = self._as_upsert(command, headers, key)
            headers = [*headers]
        command, headers = self._as_long_past(command, headers)
        self._write(self._partition(command), command, headers, key)

    def _as_upsert(self, command: Command, headers: Pairs, key: bytes) -> tuple[Command, Pairs]:
        """Make an upsert of the message, or repeat the last one of its id: as it was, with another
        payload, or with another time."""
        dice, last = self.upsert_dice, self.upserted.get(key)
        kind = dice.random()
        if last is not None and kind < 0.8:
            again, before = last
            rhythm = again.rhythm
            is_bounded = again.expire_at_ms is not None or (rhythm and rhythm.until_ms)
            if kind < 0.35 and (again.delay_ms is None or not is_bounded):
                return last
            if kind < 0.6 and (again.delay_ms is None or not is_bounded):
                value = b"w%d" % self.sent
                self.upserted[key] = replace(again, value=value), before
                return self.upserted[key]
            if not is_bounded and not again.leaves_first_time and command.delay_ms is not None:
                times = ("chronos-deliver-at", "chronos-delay")
                again = replace(again, at_ms=None, delay_ms=command.delay_ms)
                before = [pair for pair in before if pair[0] not in times]
                before.append(("chronos-delay", b"%dms" % command.delay_ms))
                return again, before
        headers = [pair for pair in headers if pair[0] != "chronos-on-conflict"]
        headers.append(("chronos-on-conflict", b"upsert"))
        self.upserted[key] = replace(command, on_conflict="upsert"), headers
        return self.upserted[key]

    def _as_long_past(self, command: Command, headers: Pairs) -> tuple[Command, Pairs]:
        """Move some due times so far into the past that they are refused, unless the record is a
        backfill's."""
        if command.at_ms is None or command.rhythm is not None or command.expire_at_ms is not None:
            return command, headers
        if self.names_dice.random() >= self.long_past:
            return command, headers
        at_ms = self.world.now_ms - MAX_PAST_MS - 10_000
        headers = [
            (name, b"%d" % at_ms if name == "chronos-deliver-at" else value)
            for name, value in headers
        ]
        if command.verb != "schedule" or self.names_dice.random() < 0.5:
            return replace(command, at_ms=at_ms, flaw="past"), headers
        return replace(command, at_ms=at_ms), [*headers, ("chronos-action", b"backfill")]

    # Actions

    def _send_action(self) -> None:
        dice = self.dice
        verb = dice.choice(["reschedule", "cancel", "cancel", "fire-now", "replay"])
        if verb == "replay":
            self._send_replay()
            return
        generated = [
            message.id for shard in self.service.shards for message in shard.pending.values()
        ]
        generated = [found for found in generated if found not in self.ids]
        generated += [found for found in self.named if found not in self.ids][-5:]
        is_keyed = not generated or dice.random() < 0.7
        named = dice.choice(self.ids) if is_keyed else dice.choice(generated)
        command = Command(verb=verb, id=named, is_keyed=is_keyed)
        headers: Pairs = [("chronos-action", verb.encode())]
        if verb == "reschedule":
            command = replace(command, at_ms=self._due_ms())
            headers.append(("chronos-deliver-at", b"%d" % (command.at_ms or 0)))
            if is_keyed:
                command, headers = self._as_long_past(command, headers)
        key: bytes | None = named
        if not is_keyed or dice.random() < 0.3:
            headers.append(("chronos-id", named))
            key = None
        elif verb == "cancel" and dice.random() < 0.5:
            headers = []
        self._write(self._partition(command), command, headers, key)

    def _send_replay(self) -> None:
        """Replay a dead letter, as `chronos dead-letters replay` does."""
        letters = self.brokers.topics[DEAD_LETTER][0].committed()
        if not letters:
            return
        letter = self.dice.choice(letters[-4:])
        headers = dict(letter.headers or ())
        message_id, target = headers["chronos-id"], headers["chronos-target-topic"]
        assert message_id is not None
        assert target is not None
        replayed = headers.get("chronos-replayed") or headers["chronos-source"]
        assert replayed is not None
        is_keyed = letter.key is not None
        if "chronos-occurrence" in headers:
            if "chronos-replayed" not in headers:
                replayed = b"%b/%b" % (replayed, headers["chronos-occurrence"] or b"")
            message_id, is_keyed = replayed, True
        due_ms = self.world.now_ms
        own = [pair for pair in letter.headers or () if not pair[0].startswith("chronos-")]
        expiry = headers.get("chronos-expire-at")
        command = Command(
            verb="replay",
            id=message_id,
            is_keyed=is_keyed,
            at_ms=due_ms,
            target=target.decode(),
            target_key=headers.get("chronos-target-key"),
            value=letter.value,
            headers=own,
            replayed=replayed,
            expire_at_ms=None if expiry is None or int(expiry) <= due_ms else int(expiry),
        )
        pairs: Pairs = [
            *own,
            ("chronos-action", b"replay"),
            ("chronos-deliver-at", b"%d" % due_ms),
            ("chronos-replayed", replayed),
            ("chronos-target-topic", target),
            ("chronos-id", message_id),
        ]
        if command.target_key is not None:
            pairs.append(("chronos-target-key", command.target_key))
        if expiry is not None:
            pairs.append(("chronos-expire-at", expiry))
        self._write(self._partition(command), command, pairs, message_id if is_keyed else None)

    # Mistakes

    def _send_flawed(self) -> None:
        dice = self.dice
        command, headers, key = self._message("schedule")
        kind = dice.choice(
            [
                *FLAWS,
                "no-time",
                "no-target",
                "reserved-target",
                "forbidden-target",
                "bad-id",
                "reserved-id",
                "no-id",
                "beyond-max-delay",
                "unreadable-headers",
                "create-time",
                "hop",
                "expiry",
            ]
        )
        names = [name for name, _ in headers]
        create_time_ms = None
        if kind in FLAWS:
            added: Pairs = list(FLAWS[kind])
            headers = [
                pair
                for pair in headers
                if pair[0] not in [name for name, _ in added] or kind == "repeated-header"
            ]
            headers += added
            if kind == "unknown-header":
                near = self.names_dice.choice(
                    ["chronos-wish", "chronos_dely", "ChronosTarget-Key", "chronos.spread"]
                )
                headers[-1] = (near, b"1")
        elif kind == "no-time":
            if command.leaves_first_time:
                return
            headers = [
                pair
                for pair in headers
                if pair[0] not in ("chronos-deliver-at", "chronos-delay", "chronos-expire-at")
            ]
            headers = [
                pair
                for pair in headers
                if not pair[0].startswith(("chronos-repeat", "chronos-late", "chronos-spread"))
            ]
            if key is not None and command.value is None:
                return
        elif kind == "no-target":
            headers = [pair for pair in headers if pair[0] != "chronos-target-topic"]
        elif kind in ("reserved-target", "forbidden-target"):
            topic = REJECTED.encode() if kind == "reserved-target" else b"forbidden"
            headers = [
                (name, topic if name == "chronos-target-topic" else value)
                for name, value in headers
            ]
        elif kind == "bad-id":
            key = dice.choice([b"", b"i" * 1_025])
        elif kind == "reserved-id":
            key = b"0-5-5"
        elif kind == "no-id":
            headers, key = [("chronos-action", b"cancel")], None
        elif kind == "beyond-max-delay":
            if "chronos-expire-at" in names or "chronos-repeat-until" in names:
                return
            far = b"%d" % (self.world.now_ms + 2 * MAX_DELAY_MS)
            headers = [
                pair for pair in headers if pair[0] not in ("chronos-deliver-at", "chronos-delay")
            ]
            headers.append(("chronos-deliver-at", far))
        elif kind == "hop":
            kind = "bad-value"
            shard = self._partition(command)
            source = dice.choice(
                [b"delay/%d/3" % shard, b"another/0/3", b"delay/%d/3" % self.shards, b"nowhere"]
            )
            headers.append(("chronos-forwarded", b"%b;%d" % (source, self.world.now_ms)))
            self._write(shard, replace(command, flaw=kind, hop=None), headers, key)
            return
        elif kind == "expiry":
            kind = "contradictory-headers"
            if "chronos-expire-at" in names or command.at_ms is None:
                return
            headers.append(("chronos-expire-at", b"%d" % (command.at_ms - 1)))
        elif kind == "create-time":
            create_time_ms = 1_000 * self.world.now_ms
        command = replace(command, flaw=kind)
        self._write(
            self._partition(command),
            command,
            None if kind == "unreadable-headers" else headers,
            key,
            create_time_ms,
        )

    # Writing

    def _partition(self, command: Command) -> int:
        dice = self.dice
        if command.id is None or command.flaw or dice.random() < self.habits.elsewhere:
            return dice.randrange(self.shards)
        return self.service.home(command)

    def _write(
        self,
        shard: int,
        command: Command,
        headers: Pairs | None,
        key: bytes | None,
        create_time_ms: int | None = None,
    ) -> None:
        partition = self.brokers.topics[DELAY][shard]
        if headers is not None and not command.flaw and command.call is None:
            command, headers = self._called(command, headers, key)
        if headers is not None and not command.flaw and command.id is not None and self.shards > 1:
            command = self._pretend(shard, command, headers)
        if headers is not None and self.names_dice.random() < self.misspelled:
            headers = self._misspell(headers)
        value = (
            command.value
            if command.verb not in ("probe", "cancel", "reschedule", "fire-now")
            else None
        )
        offset = self.brokers.append(
            partition, key, value, headers, self.transaction, create_time_ms
        )
        self.service.commands[shard, offset] = command
        self.sent += 1
        if key is None and command.verb == "schedule" and not command.flaw:
            record = partition.items[offset][0]
            assert record is not None
            due_ms = self.service.due_ms(command, record.timestamp_ms)
            self.named.append(b"%d-%d-%d" % (shard, due_ms, offset))
        elif command.id is not None and command.id not in self.named:
            self.named.append(command.id)
        self.world.trace(
            f"send {shard}/{offset} {command.verb} {(command.id or b'').decode()} {command.flaw}"
        )

    def _called(self, command: Command, headers: Pairs, key: bytes | None) -> tuple[Command, Pairs]:
        """Name the call of some records. The name has an effect on those that have an id and may
        be repeated."""
        if command.verb in ("probe", "replay") or self.call_dice.random() >= self.calls:
            return command, headers
        call = b"call-%d" % self.sent
        headers = [*headers, ("chronos-call", call)]
        if command.id is not None and command.verb != "fire-now":
            command = replace(command, call=call)
            self.called.append((command, [*headers], key))
        return command, headers

    def _misspell(self, headers: Pairs) -> Pairs:
        """Write headers of Chronos in another case, or with `_` for `-`: they mean the same. A hop
        is only as Chronos writes it."""
        spell = self.names_dice.choice([str.title, str.upper, lambda name: name.replace("-", "_")])
        return [
            (spell(name) if self._may_be_spelled(name) else name, value) for name, value in headers
        ]

    def _may_be_spelled(self, name: str) -> bool:
        return (
            name.startswith("chronos-")
            and name != "chronos-forwarded"
            and self.names_dice.random() < 0.8
        )

    def _pretend(self, shard: int, command: Command, headers: Pairs) -> Command:
        """Write a hop that Chronos did not write: the record looks as if it had been forwarded."""
        if self.dice.random() >= self.habits.hops:
            return command
        source = (shard + 1) % self.shards
        first_ms = self.world.now_ms - self.dice.choice([0, 9, 400, 900, 5_000, -300, -2_000])
        if command.delay_ms is not None:
            return command
        headers.append(
            ("chronos-forwarded", b"%b/%d/%d;%d" % (DELAY.encode(), source, 0, first_ms))
        )
        return replace(command, hop=(source, 0, first_ms))
