"""A flow whose messages have, besides the plain ones, all the features at random: series, spread,
expiry, limits of attempts, a target with a rate, targets that fail, and replays of dead letters
over HTTP at any moment.

Four more targets: `mixed` takes everything; `limited` has a rate; `closed` becomes compacted, so
that it refuses messages without a key, and is repaired later; `nowhere` does not exist. Every
occurrence of every message is promised one end."""

import contextlib
import http.client
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from chronos.core.series import spread_shift_ms
from chronos.core.shard.progress import Outcome, unpack_progress
from tests.harness.broker import Clients
from tests.harness.service import Service
from tests.integration.flow import SHARDS, KafkaFlow, now_ms, read_committed, text_headers
from tests.integration.foreign import alter_topic

MARK = b"mixed "
"""The payload of a mixed message begins with it and its number."""

RATE, BURST = 100, 20
"""Rate per second of the target `limited`, and its burst."""

SLACK = 1.35
"""Most messages in a window, relative to the rate: shares are adjusted twice a second."""

STARTS = 4
"""Most starts of the service in a second: after each, every shard may deliver one message at
once."""

CLOSED = ("no-key", "refused-by-broker")
"""The reasons for which `closed` refuses: known beforehand, or by the broker's answer."""

REPLAY_EVERY_S = 0.2

REPLAYED_AT_ONCE = 30
"""Dead letters per request: while `closed` is not repaired, all of them die again."""

ROUNDS = 20
"""Most requests, besides those that the number of messages needs, after which no dead letter of
`closed` may be left."""


@dataclass
class Mixed:
    """One mixed message."""

    number: int
    target: str
    due_ms: int
    keyed: bool
    """With a target key."""
    every_ms: int
    times: int
    policy: str
    spread_ms: int
    expire_ms: int | None
    place: tuple[int, int] = (-1, -1)
    """Shard and offset, once acknowledged."""
    accepted_ms: int = 0


@dataclass(frozen=True)
class Seen:
    """A delivery, or a dead letter, of a mixed message."""

    number: int
    occurrence: int
    """Of the original, also in a replay."""
    token: tuple[int, int, int]
    """Shard, offset and occurrence by its receipt."""
    timestamp_ms: int
    due_ms: int
    reason: str
    replayed: bool
    place: str


class MixedFlow(KafkaFlow):
    """A flow with mixed messages; `sent` and everything else in the base class is about the plain
    ones."""

    def __init__(self, kafka: Clients, seed: int, *, misplaced: float = 0.0) -> None:
        super().__init__(kafka, seed, misplaced=misplaced)
        self.mixed: list[Mixed] = []
        self.targets = {
            name: f"{self.prefix}.{name}" for name in ("mixed", "limited", "closed", "nowhere")
        }
        for name in ("mixed", "limited", "closed"):
            kafka.create_topic(
                self.targets[name], partitions=2, config={"message.timestamp.type": "LogAppendTime"}
            )

    def settings(self) -> dict[str, object]:
        """With a rate for `limited`, and short pauses between attempts."""
        return {
            **super().settings(),
            "delivery.rates": f'{{"{self.targets["limited"]}": {RATE}/s burst {BURST}}}',
            "delivery.retry_base": "100ms",
            "delivery.retry_cap": "500ms",
        }

    # --- in

    def begin(self, service: Service) -> None:
        """Start the service and let `closed` become compacted while the service takes it for an
        ordinary topic, until a message was refused by the broker."""
        service.start()
        self.prime(service)

    def prime(self, service: Service) -> None:
        """The same while the service runs."""
        self._write("closed", now_ms())
        service.wait_until(
            lambda: _total(service, "delivered") > 0, "deliver the first message", timeout_s=60.0
        )
        self._compact("compact")
        for _ in range(10):
            self._write("closed", now_ms())
        service.wait_until(
            lambda: _total(service, "carried", "dead") > 0, "see a message refused", timeout_s=60.0
        )

    def repair(self) -> None:
        """Let `closed` take messages without a key again."""
        self._compact("delete")

    def _compact(self, policy: str) -> None:
        alter_topic(self._kafka, self.targets["closed"], cleanup_policy=policy)

    def write_mixed(self, count: int, soonest_ms: int, latest_ms: int) -> None:
        """Write `count` mixed messages first due between the two times."""
        for _ in range(count):
            target = self.random.choice(["mixed", "mixed", "mixed", "limited", "closed", "closed"])
            self._write(target, self.random.randint(soonest_ms, latest_ms), mixed=True)
        self._write("nowhere", self.random.randint(soonest_ms, latest_ms))

    def write_limited(self, count: int, due_ms: int) -> None:
        """Write a burst for the target with the rate."""
        for _ in range(count):
            self._write("limited", due_ms)

    def _write(self, target: str, due_ms: int, *, mixed: bool = False) -> None:
        dice = self.random
        number = len(self.mixed)
        headers: dict[str, str | bytes | None] = {
            "chronos-target-topic": self.targets[target].encode(),
            "chronos-deliver-at": b"%d" % due_ms,
        }
        keyed = mixed and dice.random() < 0.2
        every_ms, times, policy, spread_ms, expire_ms = 0, 1, "", 0, None
        if keyed:
            headers["chronos-target-key"] = b"key-%d" % number
        if mixed and dice.random() < 0.3:
            every_ms, times = dice.choice([100, 300, 700]), dice.randint(2, 4)
            # Retries may take longer than the interval: only with `fire-all` each occurrence has an
            # end of its own.
            policy = (
                "fire-all" if target == "closed" else dice.choice(["fire-all", "fire-once", "skip"])
            )
            headers["chronos-repeat"] = b"every %d" % every_ms
            headers["chronos-repeat-times"] = b"%d" % times
            headers["chronos-late-policy"] = policy.encode()
        if mixed and dice.random() < 0.3:
            spread_ms = dice.choice([1, 400, 2_000])
            headers["chronos-spread"] = b"%d" % spread_ms
        if mixed and target != "closed" and dice.random() < 0.2:
            expire_ms = due_ms + spread_ms + dice.choice([0, 200, 1_000])
            headers["chronos-expire-at"] = b"%d" % expire_ms
        if mixed and dice.random() < 0.3:
            headers["chronos-attempts"] = b"%d" % dice.randint(1, 5)
        message = Mixed(
            number, target, due_ms, keyed, every_ms, times, policy, spread_ms, expire_ms
        )
        self.mixed.append(message)
        message_id = f"mixed-{number}" if dice.random() < 0.4 else None
        partition = -1 if message_id is not None else number % SHARDS
        self._produce(message_id, f"{MARK.decode()}{number}", headers, partition, _placed(message))

    # --- dead letters

    @contextmanager
    def replaying(self, service: Service) -> Iterator[None]:
        """Replay dead letters of `closed` over HTTP for the block, whether the service answers or
        not."""
        stop = threading.Event()

        def replay() -> None:
            while not stop.wait(REPLAY_EVERY_S):
                # A node that is killed amid its answer leaves a part of it.
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    self._replay(service)

        thread = threading.Thread(target=replay)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _replay(self, service: Service) -> tuple[int, Any]:
        body = {"target": self.targets["closed"], "limit": REPLAYED_AT_ONCE}
        return service.ask("POST", "/v1/dead-letters/replay", body)

    def replay_all(self, service: Service) -> None:
        """Replay the dead letters of `closed` until none is left, and wait until everything is
        settled."""
        for _ in range(ROUNDS + len(self.mixed) // REPLAYED_AT_ONCE):
            self._settle(service)
            status, answer = self._replay(service)
            if status == 503:  # the broker did not answer in time, and the request may be repeated
                continue
            assert (status, answer.get("refused")) == (200, []), answer
            if not answer["matched"] and answer["after"] is None:
                return
        raise AssertionError("dead letters are left although their target is repaired")

    def _settle(self, service: Service) -> None:
        """Wait until everything is settled: also what the service wrote, because a probe behind it
        was pulled."""
        for shard in range(SHARDS):
            self._produce(None, None, {"chronos-action": b"probe"}, shard, lambda _: None)
        self.wait_settled(service)

    # --- at the end

    def is_own(self, message: Message) -> bool:
        """Mixed messages and the markers of replays are none of the plain ones."""
        is_marker = "chronos-resolution" in text_headers(message)
        return not is_marker and not (message.value() or b"").startswith(MARK)

    def deliveries(self) -> list[Seen]:
        """All deliveries of mixed messages."""
        names = ("mixed", "limited", "closed")
        return [seen for name in names for seen in self._seen(self.targets[name])]

    def letters(self) -> list[Seen]:
        """All dead letters of mixed messages."""
        return self._seen(f"{self.prefix}.dead_letter")

    def ends(self) -> tuple[int, int]:
        """With those of mixed messages."""
        delivered, dead = super().ends()
        return delivered + len(self.deliveries()), dead + len(self.letters())

    def _seen(self, topic: str) -> list[Seen]:
        found = []
        for message in read_committed(self._kafka.bootstrap, topic):
            value, headers = message.value() or b"", text_headers(message)
            if not value.startswith(MARK):
                continue
            number = int(value.removeprefix(MARK))
            _, shard, offset = headers["chronos-source"].rsplit("/", 2)
            own = int(headers.get("chronos-occurrence", "1"))
            replayed = headers.get("chronos-replayed")
            in_series = self.mixed[number].times > 1
            found.append(
                Seen(
                    number=number,
                    occurrence=int(replayed.rsplit("/", 1)[1]) if replayed and in_series else own,
                    token=(int(shard), int(offset), own),
                    timestamp_ms=message.timestamp()[1],
                    due_ms=int(headers["chronos-due-at"]),
                    reason=headers.get("chronos-reason", ""),
                    replayed=replayed is not None,
                    place=f"{topic}/{message.partition()}/{message.offset()}",
                )
            )
        return found

    def complaints(self) -> list[str]:
        """Also every occurrence of a mixed message that has not exactly the ends that it may
        have."""
        delivered, letters = self.deliveries(), self.letters()
        wrong: dict[str, list[str]] = {}
        by_number: dict[int, tuple[list[Seen], list[Seen]]] = {
            message.number: ([], []) for message in self.mixed
        }
        for kind, found in enumerate((delivered, letters)):
            for seen in found:
                by_number[seen.number][kind].append(seen)
        for message in self.mixed:
            for fault in _faults(message, *by_number[message.number], self.skew_ms):
                wrong.setdefault(fault, []).append(f"{message}, {by_number[message.number]}")
        for fault in self._against_progress(delivered, letters):
            wrong.setdefault("against the progress log", []).append(fault)
        times_ms = sorted(
            seen.timestamp_ms for seen in delivered if self.mixed[seen.number].target == "limited"
        )
        for window_s in (1, 5):
            most = max(
                (bisect_left(times_ms, at + 1_000 * window_s) - n for n, at in enumerate(times_ms)),
                default=0,
            )
            if most > (RATE * window_s + BURST) * SLACK + SHARDS * STARTS * window_s:
                wrong.setdefault("too fast", []).append(f"{most} messages in {window_s} s")
        for record in read_committed(self._kafka.bootstrap, f"{self.prefix}.rejected"):
            if (record.value() or b"").startswith(MARK):
                wrong.setdefault("rejected", []).append(
                    f"{record.value()!r} {text_headers(record)}"
                )
        lines = [
            f"{len(each)} mixed {fault}: {'; '.join(each[:5])}" for fault, each in wrong.items()
        ]
        return super().complaints() + lines

    def _against_progress(self, delivered: list[Seen], letters: list[Seen]) -> Iterator[str]:
        """What the masters decided, compared with the topics: every occurrence delivered amid a
        series, and every dead letter."""
        again: Counter[tuple[int, int, int]] = Counter()
        dead: Counter[tuple[int, int]] = Counter()
        for record in read_committed(self._kafka.bootstrap, f"{self.prefix}.progress"):
            shard = record.partition()
            assert shard is not None
            for decision in unpack_progress(record.value(), SHARDS).decisions:
                if decision.outcome == Outcome.AGAIN:
                    again[shard, decision.offset, decision.occurrence - 1] += 1
                elif decision.outcome in (Outcome.DEAD, Outcome.EXPIRED):
                    dead[shard, decision.offset] += 1
        tokens = Counter(seen.token for seen in delivered)
        if max(tokens.values(), default=0) > 1:
            yield f"delivered twice: {tokens.most_common(3)}"
        if again - tokens:
            yield f"decided and not delivered: {again - tokens}"
        found = Counter(seen.token[:2] for seen in letters)
        if found != dead:
            yield f"dead letters: {found - dead} too many, {dead - found} missing"


def _placed(message: Mixed) -> Callable[[Message], None]:
    def note(report: Message) -> None:
        shard, offset = report.partition(), report.offset()
        assert shard is not None
        assert offset is not None
        message.place, message.accepted_ms = (shard, offset), report.timestamp()[1]

    return note


def _total(service: Service, *names: str) -> int:
    return sum(shard["totals"][name] for shard in service.shards() for name in names)


def _faults(
    message: Mixed, delivered: list[Seen], letters: list[Seen], skew_ms: int
) -> Iterator[str]:
    """The violations of one message. `skew_ms`: most by which the clock of a broker differs from
    this machine's."""
    times = Counter(seen.occurrence for seen in delivered)
    dead = Counter(seen.occurrence for seen in letters)
    reasons = {seen.reason for seen in letters}
    if max(times.values(), default=0) > 1:
        yield "duplicated"
    if not {*times, *dead} <= {*range(1, message.times + 1)}:
        yield "with an occurrence too many"
    if message.target == "closed":
        # Each dead letter was replayed until it was delivered.
        if not all(times[number] for number in range(1, message.times + 1)):
            yield "lost"
        if not reasons <= set(CLOSED) or (message.keyed and letters):
            yield "dead-lettered"
    elif message.target == "nowhere":
        if delivered or (list(dead.values()), reasons) != ([1], {"target-missing"}):
            yield "without a dead letter"
    else:
        ends = times + dead
        if max(ends.values(), default=0) > 1:
            yield "with two ends"
        if message.policy == "skip":
            if not times[message.times] and not letters:
                yield "lost"
        elif not all(ends[number] for number in range(1, message.times + 1)):
            yield "lost"
        if not reasons <= {"expired"} or (
            letters and message.expire_ms is None and message.policy != "skip"
        ):
            yield "dead-lettered"
        if (
            message.times == 1
            and message.expire_ms is not None
            and message.expire_ms < message.accepted_ms - 2 * skew_ms
            and delivered
        ):
            yield "delivered though expired before"
    shift_ms = spread_shift_ms(*message.place, message.spread_ms)
    for seen in delivered:
        if not seen.replayed:
            after_ms = seen.due_ms - message.due_ms
            in_rhythm = after_ms % message.every_ms == 0 if message.every_ms else after_ms == 0
            if not in_rhythm or (
                message.policy == "fire-all"
                and after_ms != (seen.occurrence - 1) * message.every_ms
            ):
                yield "out of rhythm"
        if seen.timestamp_ms < seen.due_ms + (0 if seen.replayed else shift_ms) - skew_ms:
            yield "early"
