"""Producers: messages and actions on few ids and close times, so that collisions are frequent."""

from __future__ import annotations

from functools import partial
from random import Random

from chronos.core.keys import partition_of
from chronos.core.message import HEADERS, RECEIPT, SCHEDULING
from tests.sim.broker import DELAY, Brokers, Transaction
from tests.sim.checker import Checker
from tests.sim.expectations import Expectation
from tests.sim.log import POISON
from tests.sim.world import World

DAY_MS = 86_400_000
MAX_DELAY_MS = 40 * DAY_MS
MAX_PAST_MS = 2 * DAY_MS

VERBS = ("replace", "reschedule", "cancel", "fire-now")
FLAWS = ("header", "target", "time", "far", "id", "forbidden", "names", "own-topic", "create-time")

Pairs = list[tuple[str, bytes | None]]


class Producers:
    """The producers of the delay topic. They always reach the brokers; nodes may not."""

    def __init__(
        self, world: World, brokers: Brokers, checker: Checker, *, shards: int, seed: int
    ) -> None:
        draw = world.random
        self.world = world
        self.brokers = brokers
        self.checker = checker
        self.shards = shards
        self.targets = ["a", "b"]
        self.ids = [b"id-%d" % number for number in range(draw.choice([1, 3, 8]))]
        self.share_keyed = draw.choice([0.0, 0.3, 0.8])
        self.share_actions = draw.choice([0.0, 0.2, 0.5])
        self.share_flawed = draw.choice([0.0, 0.0, 0.15])
        self.share_poison = draw.choice([0.0, 0.0, 0.1])
        self.share_expiring = draw.choice([0.0, 0.0, 0.2])
        self.share_series = draw.choice([0.0, 0.0, 0.1, 0.3])
        self.share_spread = draw.choice([0.0, 0.0, 0.3])
        self.share_far = draw.choice([0.0, 0.1])
        self.share_transactions = draw.choice([0.0, 0.0, 0.3])
        self.spread_ms = draw.choice([50, 2_000, 15_000])
        self.addresses: list[tuple[int, bytes]] = []
        self.sent = 0
        self.share_unreadable = draw.choice([0.0, 0.0, 0.05])
        self.attempts_dice = Random(f"tries-max {seed}")
        self.place_dice = Random(f"partitioner {seed}")
        self.share_elsewhere = self.place_dice.choice([0.0, 0.3, 1.0])
        """Of the records with an id, those of a producer with another partitioner."""
        self.share_forged = self.place_dice.choice([0.0, 0.0, 0.1])
        self.share_attempts = 0.5 if self.attempts_dice.random() < 0.25 else 0.0
        self.order_dice = Random(f"order {seed}")
        self.spelling_dice = Random(f"header names in records {seed}")
        self.share_spelled = 0.3 if self.spelling_dice.random() < 0.1 else 0.0
        """Of the records, those with headers in another spelling, with a mistyped one, or with a
        time long ago."""

    def send(self) -> None:
        """Send one record, a transaction with up to three, or a batch that cannot be read."""
        draw = self.world.random
        if self.share_unreadable and self.world.chance(self.share_unreadable):
            self._send_unreadable()
            return
        if self.world.faulty and self.world.chance(self.share_transactions):
            transaction = Transaction(None, 0)
            for _ in range(draw.randint(1, 3)):
                self._send_one(transaction)
            self.world.after(
                draw.choice([1, 50, 900, 4_000]), self._end, transaction, draw.random() < 0.7
            )
        else:
            self._send_one(None)

    def _send_unreadable(self) -> None:
        """Write a batch of up to three records that no reader can decompress, sometimes two of them
        in a row."""
        shard = self.world.random.randrange(self.shards)
        partition = self.brokers.topics[DELAY][shard]
        for _ in range(self.world.random.choice([1, 1, 2])):
            count, first = self.world.random.randint(1, 3), partition.high
            partition.unreadable |= dict.fromkeys(
                range(first, first + count), (first, first + count - 1)
            )
            for _ in range(count):
                self.write(
                    None, shard, Expectation(verb="schedule", malformed=True, unreadable=True), []
                )

    def race(self) -> None:
        """Schedule with one partitioner and cancel with another, in either order, so that one of
        the records is forwarded."""
        dice = self.place_dice
        named = dice.choice([*self.ids, b"race-%d" % self.sent])
        home = partition_of(named, self.shards)
        elsewhere = (home + dice.randrange(1, max(2, self.shards))) % self.shards
        first, second = dice.choice([(elsewhere, home), (home, elsewhere), (elsewhere, elsewhere)])
        steps = [partial(self._schedule_in, first, named), partial(self._cancel_in, second, named)]
        if dice.random() < 0.3:
            steps.reverse()
        steps[0]()
        self.world.after(dice.choice([0, 1, 20, 300, 900, 2_500]), steps[1])

    def _schedule_in(self, shard: int, named: bytes) -> None:
        due_ms, verb = self.world.now_ms + self.place_dice.choice([0, 500, 5_000]), "schedule"
        policy = self.place_dice.choice(["reject", "replace"])
        headers: Pairs = [("chronos-target-topic", b"a"), ("chronos-deliver-at", b"%d" % due_ms)]
        headers.append(("chronos-on-conflict", policy.encode()))
        expected = Expectation(
            verb=verb, id=named, due_ms=due_ms, target="a", value=b"race", policy=policy
        )
        self.write(None, shard, expected, headers, named)

    def _cancel_in(self, shard: int, named: bytes) -> None:
        self.write(None, shard, Expectation(verb="cancel", id=named), [], named)

    def tangle(self) -> None:
        """Write some records of one id through different partitions, within two seconds: the order
        among them is decided by first timestamps of different brokers."""
        dice = self.order_dice
        named = dice.choice([*self.ids, b"tangle-%d" % self.sent])
        after_ms = 0
        places = dice.choice([range(self.shards), [dice.randrange(self.shards)]])
        for _ in range(dice.choice([3, 4, 6])):
            shard = dice.choice(places)
            kind = dice.choice(
                [
                    "schedule",
                    "schedule",
                    "cancel",
                    "cancel",
                    "cancel",
                    "replace",
                    "reschedule",
                    "fire-now",
                ]
            )
            self.world.after(after_ms, self._tangle_one, kind, shard, named)
            if self.brokers.apart_ms and dice.random() < 0.3:
                self.world.after(
                    after_ms, self.brokers.elect, self.brokers.topics[DELAY][shard], dice
                )
            after_ms += dice.choice([0, 1, 30, 200, 450, 600])

    def _tangle_one(self, kind: str, shard: int, named: bytes) -> None:
        if kind == "cancel":
            self._cancel_in(shard, named)
            return
        dice = self.order_dice
        headers: Pairs = []
        expected = Expectation(verb=kind, id=named)
        if kind != "schedule":
            headers.append(("chronos-action", kind.encode()))
        if kind != "fire-now":
            expected.due_ms = self.world.now_ms + dice.choice([0, 900, 5_000, 60_000])
            headers.append(("chronos-deliver-at", b"%d" % expected.due_ms))
        if kind in ("schedule", "replace"):
            expected.target, expected.value = "a", b"tangle"
            headers.append(("chronos-target-topic", b"a"))
        if kind == "schedule":
            expected.policy = dice.choice(["reject", "replace", "replace"])
            headers.append(("chronos-on-conflict", expected.policy.encode()))
        self.write(None, shard, expected, headers, named)

    def act(self) -> None:
        """Send one action on an id that may be pending."""
        self._send_action(None)

    def _end(self, transaction: Transaction, commit: bool) -> None:
        if transaction.state == "open":
            self.brokers.decide(transaction, commit=commit)

    def _send_one(self, transaction: Transaction | None) -> None:
        draw = self.world.random
        if self.world.chance(0.02):
            self.write(
                transaction,
                draw.randrange(self.shards),
                Expectation(verb="probe"),
                [("chronos-action", b"probe")],
            )
        elif self.world.chance(self.share_actions):
            self._send_action(transaction)
        else:
            self._send_message(transaction, "schedule")

    def _due_ms(self) -> int:
        draw = self.world.random
        if self.world.chance(self.share_far):
            return self.world.now_ms + draw.randrange(DAY_MS, 30 * DAY_MS)
        if self.world.chance(0.1):
            return self.world.now_ms - draw.randrange(1, 100_000)
        return self.world.now_ms + draw.randrange(self.spread_ms)

    def _send_message(self, transaction: Transaction | None, verb: str) -> None:
        draw, chance = self.world.random, self.world.chance
        keyed = verb == "replace" or chance(self.share_keyed)
        key = draw.choice(self.ids) if keyed else None
        due_ms = self._due_ms()
        target = draw.choice(self.targets)
        value = (
            POISON if chance(self.share_poison) else draw.choice([None, b"", b"v%d" % self.sent])
        )
        flaw = draw.choice(FLAWS) if chance(self.share_flawed) else ""
        target_key = draw.choice([None, b"k1", b"k2"])
        headers: Pairs = [("chronos-target-topic", target.encode()), ("trace", b"%d" % self.sent)]
        is_delay = chance(0.3) and due_ms >= self.world.now_ms
        if is_delay:
            headers.append(("chronos-delay", b"%dms" % (due_ms - self.world.now_ms)))
        else:
            headers.append(("chronos-deliver-at", b"%d" % due_ms))
        if target_key is not None:
            headers.append(("chronos-target-key", target_key))
        if verb == "replace":
            headers.append(("chronos-action", b"replace"))
        policy = (
            draw.choice(["reject", "replace", "ignore"])
            if verb != "replace" and keyed and chance(0.5)
            else ""
        )
        if policy:
            headers.append(("chronos-on-conflict", policy.encode()))
        expire_after_ms = draw.choice([0, 100, 3_000]) if chance(self.share_expiring) else None
        if value is None and keyed:
            value = b"null"
        every_ms, times, late_policy, spread_ms = 0, 1, "", 0
        if expire_after_ms is None and chance(self.share_series):
            every_ms, times = draw.choice([100, 700, 20_000]), draw.randint(1, 5)
            late_policy = draw.choice(["", "fire-once", "fire-all", "skip"])
            headers += [
                ("chronos-repeat", b"every %d" % every_ms),
                ("chronos-repeat-times", b"%d" % times),
            ]
            if late_policy:
                headers.append(("chronos-late-policy", late_policy.encode()))
        if expire_after_ms is None and chance(self.share_spread):
            spread_ms = draw.choice([1, 500, 5_000])
            headers.append(("chronos-spread", b"%dms" % spread_ms))
        attempts = 0
        if self.attempts_dice.random() < self.share_attempts:
            attempts = self.attempts_dice.choice([1, 2, 5])
            headers.append(("chronos-attempts", b"%d" % attempts))
        key = self._spoil(flaw, headers, key)
        if flaw == "id" and key is None:
            flaw = ""
        shard = (
            draw.randrange(self.shards)
            if key is None or chance(0.05)
            else partition_of(key, self.shards)
        )
        if key is not None:
            shard = self._place(shard)
        delay_ms = due_ms - self.world.now_ms if is_delay else None
        if is_delay:
            due_ms += self.brokers.clock(self.brokers.topics[DELAY][shard]).ahead_ms
        expire_at_ms = None if expire_after_ms is None else due_ms + expire_after_ms
        if expire_at_ms is not None:
            headers.append(("chronos-expire-at", b"%d" % expire_at_ms))
        expected = Expectation(
            verb=verb,
            id=key,
            due_ms=due_ms,
            target=target,
            key=target_key,
            value=value,
            expire_at_ms=expire_at_ms,
            policy=policy,
            malformed=flaw != "",
            every_ms=every_ms,
            times=times,
            late_policy=late_policy,
            spread_ms=spread_ms,
            attempts=attempts,
            delay_ms=delay_ms,
        )
        if not flaw and self._forge(headers, expected, shard):
            flaw = "hop"
        create_time_ms = 1_000 * self.world.now_ms if flaw == "create-time" else None
        offset = self.write(
            transaction, shard, expected, None if flaw == "names" else headers, key, create_time_ms
        )
        if key is None and not expected.malformed:
            self.addresses.append((shard, b"%d-%d-%d" % (shard, due_ms, offset)))

    def _place(self, shard: int) -> int:
        """Return the partition that the producer of a record with an id chooses: the right one, or
        any."""
        if self.place_dice.random() < self.share_elsewhere:
            return self.place_dice.randrange(self.shards)
        return shard

    def _forge(self, headers: Pairs, expected: Expectation, shard: int) -> bool:
        """Pretend that Chronos forwarded the record; return True if the hop cannot be true, so that
        it must be refused.

        A hop from the future may be true: the clocks of brokers differ.
        """
        if self.place_dice.random() >= self.share_forged or any(
            name == "chronos-delay" for name, _ in headers
        ):
            return False
        now_ms = self.world.now_ms
        other = (shard + 1) % self.shards
        place, first_ms = self.place_dice.choice(
            [(shard, now_ms - 9), (other, now_ms + 9), (other, now_ms - 900)]
        )
        if first_ms > now_ms:
            first_ms += self.order_dice.choice([0, 480, 600, 5_000])
        headers.append(("chronos-forwarded", b"%b/%d/%d;%d" % (DELAY.encode(), place, 0, first_ms)))
        expected.malformed |= place == shard
        expected.first_ms, expected.first_shard = first_ms, place
        return expected.malformed

    def _spoil(self, flaw: str, headers: Pairs, key: bytes | None) -> bytes | None:
        if flaw == "header":
            headers.append(("chronos-wish", b"1"))
        elif flaw == "target":
            headers[0] = ("chronos-target-topic", b"no topic")
        elif flaw == "time":
            headers.append(("chronos-deliver-at", b"tomorrow"))
            headers.append(("chronos-delay", b"tomorrow"))
        elif flaw == "far":
            headers[:] = [
                pair for pair in headers if pair[0] not in ("chronos-delay", "chronos-deliver-at")
            ]
            headers.append(("chronos-delay", b"41d"))
        elif flaw == "id" and key is not None:
            return b"0-5-5"
        elif flaw == "forbidden":
            headers[0] = ("chronos-target-topic", b"forbidden")
        elif flaw == "own-topic":
            headers[0] = ("chronos-target-topic", b"rejected")
        return key

    def _send_action(self, transaction: Transaction | None) -> None:
        draw, chance = self.world.random, self.world.chance
        verb = draw.choice(VERBS)
        if verb == "replace":
            self._send_message(transaction, verb)
            return
        if self.addresses and chance(0.4):
            shard, named = draw.choice(self.addresses[-6:])
        else:
            named = draw.choice(self.ids)
            shard = partition_of(named, self.shards)
        headers: Pairs = [("chronos-action", verb.encode())]
        expected = Expectation(verb=verb, id=named)
        if verb == "reschedule":
            expected.due_ms = self._due_ms()
            headers.append(("chronos-deliver-at", b"%d" % expected.due_ms))
        key: bytes | None = named
        if chance(0.5):
            headers.append(("chronos-id", named))
            key = None
        elif verb == "cancel":
            headers = []
        shard = self._place(shard)
        if headers:
            self._forge(headers, expected, shard)
        self.write(transaction, shard, expected, headers, key)

    def write(
        self,
        transaction: Transaction | None,
        shard: int,
        expected: Expectation,
        headers: Pairs | None,
        key: bytes | None = None,
        create_time_ms: int | None = None,
    ) -> int:
        """Write one record to the delay topic; return its offset."""
        partition = self.brokers.topics[DELAY][shard]
        if headers and self._spells() and not expected.malformed:
            headers = self._spelled(headers, expected)
        offset = self.brokers.append(
            partition, key, expected.value, headers, transaction, create_time_ms
        )
        self.checker.expect(partition, offset, expected)
        self.sent += 1
        named = (expected.id or b"").decode()
        self.world.trace(
            f"send {shard}/{offset} {expected.verb} {named} {expected.due_ms - self.world.now_ms}"
        )
        return offset

    def _spells(self) -> bool:
        """Return whether the next record has other spellings."""
        return self.spelling_dice.random() < self.share_spelled

    def _spelled(self, headers: Pairs, expected: Expectation) -> Pairs:
        """Return the headers with other names, which mean the same or must be refused, or with a
        time that must be."""
        dice = self.spelling_dice
        kind = dice.choice(["case", "case", "mistyped", "past"])
        if kind == "mistyped" and expected.verb != "replay":
            near = dice.choice(["chrono", "cronos", "Chronoss"])
            expected.malformed = True
            return [
                *headers,
                (dice.choice(sorted(SCHEDULING | RECEIPT)).replace("chronos", near), b"1"),
            ]
        if kind == "past":
            if expected.verb != "schedule" or expected.every_ms or expected.delay_ms is not None:
                return headers
            expected.malformed, past_ms = (
                True,
                self.world.now_ms - MAX_PAST_MS - dice.randrange(60_000, DAY_MS),
            )
            return [
                (name, b"%d" % past_ms if name == "chronos-deliver-at" else value)
                for name, value in headers
            ]
        spell = dice.choice([str.upper, str.title, lambda name: name.replace("-", "_")])
        # A hop counts only as Chronos writes it.
        return [
            (spell(name) if name in HEADERS and name != "chronos-forwarded" else name, value)
            for name, value in headers
        ]
