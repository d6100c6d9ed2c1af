"""Whatever anybody writes to the delay topic: every record ends somewhere, and the process goes on.

Ten thousand records made by Hypothesis, accounted for one by one, also after a restart and after a replay from
the logs; and floods, each of which must stay within the bounds of a step, of memory, of patience.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chronos.adapters.rocksdb.store import RocksStore
from chronos.core.message import Action, ConditionalSchedule, Entry, Reason, Record, Verb
from chronos.core.parsing import parse
from chronos.core.rules import Rules
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.foreign import Got, RawProducer, Sent, Tail, Topics, produce, progress_of, schedule

RECORDS = 10_000
RECORDS_AT_ONCE = 20

RESIDENT_BYTES_MAX = 500_000_000

STEP_MESSAGES, STEP_BYTES = 5_000, 8_000_000

PROGRESS_BYTES_MAX = 1_000_000
"""No step says so much that Kafka's default record limit would refuse it."""


class Place:
    """A service with one shard, a healthy topic and a log of everything it wrote."""

    def __init__(self, broker: Broker, folder: Path, **more: object) -> None:
        self.broker = broker
        self.topics = Topics.of(f"h{uuid.uuid4().hex[:8]}")
        self.target = broker.create_topic(f"{self.topics.delay}.target", config={"max.message.bytes": 4 << 20})
        self.folder = folder
        self.service = Service(
            folder / "node", bootstrap=broker.bootstrap, settings=self.topics.settings(shards=1, **more)
        )

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def send(self, *records: Sent) -> None:
        """Write to the delay topic."""
        produce(self.bootstrap, self.topics.delay, records)

    def totals(self) -> Counter[str]:
        """How many messages ended how."""
        return Counter({name: int(count) for name, count in self.service.shards()[0]["totals"].items()})

    def wait_pulled(self, offset: int, *, timeout_s: float = 120.0) -> None:
        """Wait until everything below the offset was decided, watching the process's memory meanwhile."""

        def pulled() -> bool:
            resident = self.service.resident_bytes()
            assert resident < RESIDENT_BYTES_MAX, f"{resident / 1e6:.0f} MB resident"
            return int(self.service.shards()[0]["pull_offset"]) >= offset

        self.service.wait_until(pulled, f"pull up to {offset}", timeout_s=timeout_s)

    def check_steps(self) -> None:
        """No transaction was larger than a step may be."""
        pulled = 0
        for size, progress in progress_of(self.bootstrap, self.topics.progress):
            assert size < PROGRESS_BYTES_MAX
            assert progress.pull_offset - pulled <= STEP_MESSAGES
            assert progress.selected <= STEP_MESSAGES
            pulled = progress.pull_offset


@pytest.fixture
def place(broker: Broker, tmp_path: Path) -> Iterator[Place]:
    place = Place(broker, tmp_path)
    with place.service:
        place.service.start()
        yield place
        assert place.service.running, place.service.tail()


# ---------------------------------------------------------------------------------------- Ten thousand records


class Hostile(NamedTuple):
    """A record as bytes."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


TARGET = b"@target"
"""Stands for the topic of the test, whose name strategies cannot know."""

_noise = st.binary(max_size=24)
_garbage = st.one_of(
    st.none(),
    _noise,
    st.sampled_from(
        [
            b"",
            b"0",
            b"-1",
            b"99999999999999999999",
            b"1e9",
            b"NaN",
            b"7d",
            b"5 m",
            b"\xff",
            b"null",
            "٣s".encode(),
        ]
    ),
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")),
)
_control = st.sampled_from(
    [
        b"chronos-" + name
        for name in (
            b"deliver-at", b"delay", b"target-topic", b"target-key", b"action", b"id", b"on-conflict",
            b"expire-at", b"due-at", b"source", b"occurrence", b"attempt", b"reason", b"detail", b"repeat",
            b"spread", b"time-zone", b"", b"unheard-of", b"DELAY", b"\xff",
        )
    ]
)  # fmt: skip
_when = st.one_of(
    st.sampled_from([b"0", b"300ms", b"0.5s"]).map(lambda text: (b"chronos-delay", text)),
    st.sampled_from([b"1700000000000", b"2020-02-29T23:59:60Z"]).map(lambda text: (b"chronos-deliver-at", text)),
)
_aim = st.sampled_from(
    [TARGET, TARGET, TARGET, TARGET, b"no-such-topic", b"__consumer_offsets", b"..", b"a" * 250, b"a b"]
)
_names = st.one_of(
    st.sampled_from(
        [
            b"a",
            b"a",
            b"traceparent",
            b"",
            b"x" * 3_000,
            b"Chronos-Delay",
            b"chronos",
            b"\xff\xfe",
            b"\xed\xa0\x80",
        ]
    ),
    st.binary(min_size=1, max_size=8).filter(lambda name: b"\0" not in name),
    st.text(min_size=1, max_size=8).map(lambda text: text.replace("\0", "0").encode("utf-8", "replace")),
)
_own = st.one_of(
    st.lists(st.tuples(_names, _garbage), max_size=3),
    st.integers(90, 200).map(lambda count: [(b"h%d" % at, b"v") for at in range(count)]),
)
_keys = st.one_of(
    st.none(),
    st.integers(0, 60).map(lambda number: b"id-%d" % number),
    st.sampled_from(
        [
            b"",
            b"k" * 1_024,
            b"k" * 1_025,
            b"k" * 60_000,
            b"0-1700000000000-5",
            b"0-0-0",
            b"7-1-1",
            b"\xff\0\xfe",
        ]
    ),
    _noise,
)
_values = st.one_of(st.none(), _noise, st.sampled_from([b"", b"v" * 20_000, bytes(range(256)) * 40]))


@st.composite
def _records(draw: st.DrawFn) -> Hostile:
    """Mostly almost right: what is all wrong is refused at the first look."""
    headers: list[tuple[bytes, bytes | None]] = []
    if draw(st.integers(0, 9)):
        headers += [(b"chronos-target-topic", draw(_aim)), draw(_when)]
    if not draw(st.integers(0, 3)):
        verb = draw(
            st.sampled_from([b"cancel", b"fire-now", b"reschedule", b"replace", b"schedule", b"probe", b"Cancel"])
        )
        headers = [(b"chronos-action", verb)] + (headers if verb in (b"replace", b"schedule") else headers[1:])
    if not draw(st.integers(0, 4)):
        headers.append((b"chronos-on-conflict", draw(st.sampled_from([b"reject", b"replace", b"ignore", b"?"]))))
    if not draw(st.integers(0, 3)):
        headers.append((draw(_control), draw(_garbage)))
    return Hostile(draw(_keys), draw(_values), draw(_own) + headers)


def _write_records(place: Place) -> int:
    """Write what Hypothesis makes; how many records."""
    written = [0]

    @settings(
        max_examples=RECORDS // RECORDS_AT_ONCE, phases=[Phase.generate], deadline=None, database=None,
        derandomize=True, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(_records(), min_size=RECORDS_AT_ONCE, max_size=RECORDS_AT_ONCE))
    def write(records: list[Hostile]) -> None:
        assert place.service.running, place.service.tail()
        for record in records:
            headers = [(name, place.target.encode() if value == TARGET else value) for name, value in record.headers]
            raw.produce(place.topics.delay, record.value, headers, record.key)
        written[0] += len(records)

    with RawProducer(place.bootstrap) as raw:
        write()
        largest = (1 << 20) - 1_000
        for headers in ([], [(b"chronos-target-topic", place.target.encode()), (b"chronos-delay", b"0")]):
            raw.produce(place.topics.delay, b"x" * largest, headers)
            raw.produce(place.topics.delay, None, [*headers, (b"own", b"x" * largest)])
        written[0] += 4
    return written[0]


def _account(place: Place, count: int) -> dict[str, int]:
    """Where every single delay record ended; an assertion when one ended nowhere or twice."""
    with Tail(place.bootstrap, place.topics.delay, *place.topics[2:], place.target) as tail:
        tail.until(lambda: len(tail.records[place.topics.delay]) == count, "the delay records")
        tail.settle(1.5)
        given_in = {got.offset: got for got in tail.records[place.topics.delay]}
        ended = Counter(
            int((got.source or b"").rpartition(b"/")[2])
            for topic in (place.target, *place.topics[2:])
            for got in tail.records[topic]
        )
        assert set(ended.values()) == {1}, [offset for offset, times in ended.items() if times > 1][:5]
        assert all(
            got.reason and got.header("chronos-detail") for topic in place.topics[2:] for got in tail.records[topic]
        )
        found = {topic: len(tail.records[topic]) for topic in (place.target, *place.topics[2:])}
    refused = {
        offset: reason
        for _, step in progress_of(place.bootstrap, place.topics.progress)
        for offset, reason in step.refused
    }
    quiet = [offset for offset in given_in if offset not in ended]
    rules = Rules(shard=0, shards=1)
    kinds: Counter[str] = Counter()
    changed = {_named(ask) for offset in given_in if offset not in refused and (ask := _asked(given_in[offset], rules))}
    for offset in quiet:
        ask = _asked(given_in[offset], rules)
        if refused.get(offset) == Reason.IGNORED:
            kinds["ignored"] += 1
        elif ask is None or isinstance(ask, Action):
            kinds["actions"] += 1
        else:
            # Cancelled or replaced: somebody must have named it.
            assert isinstance(ask, Entry | ConditionalSchedule), (offset, ask, refused.get(offset))
            assert _named(ask) in changed, (offset, given_in[offset])
            kinds["cancelled or replaced"] += 1
    totals = place.totals()
    assert kinds["ignored"] == totals["ignored"]
    assert kinds["cancelled or replaced"] == totals["cancelled"] + totals["replaced"]
    assert found[place.target] == totals["delivered"]
    assert totals["accepted"] == sum(totals[name] for name in ("delivered", "cancelled", "replaced", "expired", "dead"))
    assert found[place.topics.rejected] == totals["rejected"] == len(refused) - totals["ignored"]
    assert len(ended) + kinds.total() == count
    return {**found, **kinds}


def _asked(got: Got, rules: Rules) -> object:
    ask = parse(Record(got.offset, got.timestamp_ms, got.key, got.value, got.headers), rules)
    return None if isinstance(ask, Action) and ask.verb is Verb.PROBE else ask


def _named(ask: object) -> bytes | None:
    return ask.id if isinstance(ask, Entry | ConditionalSchedule | Action) else None


def _rows(folder: Path) -> list[tuple[bytes, bytes]]:
    """The messages, words and counts of a store; not the positions, which every start moves on."""
    store = RocksStore(folder)
    try:
        return [
            (space + key, value)
            for space in (b"e", b"i", b"x", b"c")
            for key, value in (
                (row[1:], data) for row, data in store.scan(space, bytes([space[0] + 1]), 1_000_000, 1 << 30)
            )
        ]
    finally:
        store.close()


@pytest.mark.timeout(240)
def test_ten_thousand_hostile_records_are_accounted_for_one_by_one(place: Place) -> None:
    """Delivered, dead-lettered or rejected with a reason; a restart and a replay from the logs change nothing."""
    service = place.service
    count = _write_records(place)
    assert count >= RECORDS
    place.wait_pulled(count)
    service.wait_until(lambda: service.pending() == 0, "settle everything")
    first = _account(place, count)
    assert min(first.values()) > 20, first
    before = place.totals()

    service.kill()
    service.start()
    assert place.totals() == before
    assert _account(place, count) == first
    assert service.stop() == 0
    kept = _rows(service.data_dir / "shards" / "0")

    shutil.rmtree(service.data_dir / "shards")
    service.start()
    assert place.totals() == before
    assert _account(place, count) == first
    place.send(Sent(b"after", schedule(place.target)))
    place.wait_pulled(count + 1)
    assert service.stop() == 0
    again = [row for row in _rows(service.data_dir / "shards" / "0") if b"after" not in row[1]]
    assert [row for row in again if row[0][:1] in b"ix"] == [row for row in kept if row[0][:1] in b"ix"]
    assert [row for row in again if row[0][:1] == b"e"] == [row for row in kept if row[0][:1] == b"e"]
    service.start()
    place.check_steps()


# ------------------------------------------------------------------------------------------------------ Floods


def _late_ms(found: list[Got], prefix: bytes) -> int:
    """How late the latest of the others was."""
    return max(
        got.timestamp_ms - int(got.header("chronos-due-at") or b"")
        for got in found
        if got.value and got.value.startswith(prefix)
    )


@pytest.mark.timeout(180)
def test_a_hundred_thousand_refusals_in_a_row_hold_nobody_up(place: Place) -> None:
    """Each is passed on with its reason; what is due meanwhile is delivered meanwhile."""
    place.send(*(Sent(b"timer", schedule(place.target, delay=f"{500 + 100 * number}ms")) for number in range(60)))
    place.send(*(Sent(b"bad", [("chronos-delay", b"never")]) for _ in range(100_000)))
    place.wait_pulled(100_060)

    with Tail(place.bootstrap, place.topics.rejected, place.target) as tail:
        tail.take(place.topics.rejected, 100_000)
        tail.take(place.target, 60)
        tail.settle()
    assert len(tail.records[place.topics.rejected]) == 100_000
    assert len({got.source for got in tail.records[place.topics.rejected]}) == 100_000
    assert _late_ms(tail.records[place.target], b"timer") < 2_000
    place.check_steps()


@pytest.mark.timeout(240)
def test_five_thousand_records_of_a_megabyte_stay_within_memory(broker: Broker, tmp_path: Path) -> None:
    """Steps are bounded in bytes, and so is everything on the way: refused, pending and delivered ones."""
    place = Place(broker, tmp_path, topics__message_bytes_max="2MiB")
    large = b"x" * 1_000_000
    with place.service as service:
        service.start()
        soon = schedule(place.target, delay="1s")
        for _ in range(100):
            place.send(*(Sent(large, [] if number % 10 == 0 else soon) for number in range(50)))
            assert service.resident_bytes() < RESIDENT_BYTES_MAX, f"{service.resident_bytes() / 1e6:.0f} MB"
        place.wait_pulled(5_000)
        service.wait_until(lambda: service.pending() == 0, "deliver them", timeout_s=60)
        totals = place.totals()
        assert (totals["delivered"], totals["rejected"]) == (4_500, 500)
        assert service.resident_bytes() < RESIDENT_BYTES_MAX
        place.check_steps()


@pytest.mark.timeout(180)
def test_two_hundred_thousand_messages_of_one_millisecond_take_their_turn(place: Place) -> None:
    """In order of arrival, each once, in steps of the usual size."""
    count = 200_000
    at_ms = time.time_ns() // 1_000_000 + 12_000
    headers = [("chronos-target-topic", place.target.encode()), ("chronos-deliver-at", b"%d" % at_ms)]
    place.send(*(Sent(b"%d" % number, headers) for number in range(count)))
    place.wait_pulled(count)
    place.service.wait_until(lambda: place.service.pending() == 0, "deliver them", timeout_s=90)

    with Tail(place.bootstrap, place.target) as tail:
        tail.take(place.target, count)
        found = tail.settle().records[place.target]
    assert [got.value for got in found] == [b"%d" % number for number in range(count)]
    assert min(got.timestamp_ms for got in found) >= at_ms
    assert place.service.resident_bytes() < RESIDENT_BYTES_MAX
    place.check_steps()


@pytest.mark.timeout(180)
def test_fifty_thousand_messages_of_one_id_leave_one(place: Place) -> None:
    """Conflicts are refused, replacements replace; 20,000 cancels of nobody are refused too."""
    mine = b"one-id"
    place.send(Sent(b"first", schedule(place.target, delay="1h"), mine))
    place.send(*(Sent(b"conflict", schedule(place.target, delay="1h"), mine) for _ in range(25_000)))
    place.send(
        *(
            Sent(b"%d" % number, schedule(place.target, delay="1h", on_conflict=b"replace"), mine)
            for number in range(25_000)
        )
    )
    place.send(*(Sent(None, [], b"nobody-%d" % number) for number in range(20_000)))
    place.send(Sent(b"timer", schedule(place.target)))
    place.send(Sent(None, [("chronos-action", b"fire-now")], mine))
    place.wait_pulled(70_003)

    with Tail(place.bootstrap, place.target, place.topics.rejected) as tail:
        tail.take(place.target, 2)
        tail.take(place.topics.rejected, 45_000)
        tail.settle()
    assert {got.value for got in tail.records[place.target]} == {b"timer", b"24999"}
    assert Counter(got.reason for got in tail.records[place.topics.rejected]) == {
        "conflict": 25_000,
        "unknown": 20_000,
    }
    totals = place.totals()
    assert (totals["replaced"], totals["delivered"]) == (25_000, 2)
    assert place.service.pending() == 0
    place.check_steps()


@pytest.mark.timeout(120)
def test_ten_thousand_missing_topics_hold_nobody_up(place: Place) -> None:
    """Each is looked for twice; the looks are asked in steps' worths and forgotten."""
    count = 10_000
    place.send(*(Sent(b"lost", schedule(f"missing-{number}")) for number in range(count)))
    place.send(*(Sent(b"timer", schedule(place.target, delay=f"{100 * number}ms")) for number in range(50)))

    with Tail(place.bootstrap, place.topics.dead_letter, place.target) as tail:
        tail.take(place.topics.dead_letter, count)
        tail.take(place.target, 50)
        tail.settle()
    assert {got.reason for got in tail.records[place.topics.dead_letter]} == {"target-missing"}
    assert len(tail.records[place.topics.dead_letter]) == count
    assert _late_ms(tail.records[place.target], b"timer") < 3_000
    assert place.service.resident_bytes() < RESIDENT_BYTES_MAX
