"""The load of a drill, its reader and its reference, each in a separate process that is ended
through its standard input.

`write` produces until its input ends, and prints how many messages it wrote. `trace` gets that
number as one line of input, reads until it has found them all, and prints what it found. `commit`
commits transactions until its input ends, and prints how long they took."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from tests.bench.load import PRODUCER, VALUE_BYTES, headers, read

FLUSH_S = 120.0
"""How long the acknowledgement of the last messages may take."""

COMMIT_S = 0.1
"""Pause between two transactions of the reference."""


def _input_ended() -> threading.Event:
    """Return what is set once the standard input has ended."""
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    return ended


def write(
    bootstrap: str,
    topic: str,
    target: str,
    rate: int,
    seconds_max: float,
    lowest_ms: int,
    highest_ms: int,
) -> dict[str, int]:
    """Write at a constant rate; each message is due `lowest_ms` to `highest_ms` later, and its
    value begins with its number."""
    ended = _input_ended()
    # Idempotent: a record that the client sends again after a broker failure must be written once.
    # Few batches: while five of them are in flight to a broker, the most that idempotence allows,
    # the client busy-waits (measured).
    producer = Producer(
        {
            **PRODUCER,
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "enable.idempotence": True,
            "log_level": 2,
        }
    )
    padding = os.urandom(VALUE_BYTES - 8)
    start_s = time.monotonic()
    count = 0
    span_ms = highest_ms - lowest_ms
    while not ended.is_set():
        past_s = time.monotonic() - start_s
        if past_s > seconds_max:
            raise RuntimeError(f"the load was not ended within {seconds_max:g} s")
        behind = int(past_s * rate) - count
        if behind <= 0:
            producer.poll(0.01)
            continue
        now_ms = time.time_ns() // 1_000_000
        for number in range(count, count + behind):
            due_ms = now_ms + lowest_ms + (number * 7_919) % (span_ms + 1)
            producer.produce(
                topic, number.to_bytes(8, "big") + padding, None, headers=headers(due_ms, target)
            )
        count += behind
        producer.poll(0)
    if producer.flush(FLUSH_S) > 0:
        raise RuntimeError("the load was not written")
    return {"count": count}


def trace(bootstrap: str, topic: str, rest_s: float) -> dict[str, object]:
    """The worst lateness by the second in which messages were due, and the number of lost,
    duplicated and early ones.

    Ends when as many messages were found as its input says were written, or `rest_s` seconds after
    that input."""
    written: list[int] = []
    threading.Thread(target=lambda: written.extend(map(int, sys.stdin)), daemon=True).start()
    worst_ms: dict[int, float] = {}
    seen = bytearray()
    duplicated = early = found = 0
    deadline = None
    for messages in read(bootstrap, topic):
        now_ms = time.time_ns() / 1_000_000
        if written and deadline is None:
            deadline = time.monotonic() + rest_s
        if deadline is not None and (
            time.monotonic() > deadline or (messages is None and found >= written[0])
        ):
            break
        for message in messages or ():
            due_ms = int(dict(message.headers() or ())["chronos-due-at"] or b"0")
            late_ms = now_ms - due_ms
            early += late_ms < 0
            second = due_ms // 1_000
            if late_ms > worst_ms.get(second, 0.0):
                worst_ms[second] = round(late_ms, 1)
            number = int.from_bytes((message.value() or b"")[:8], "big")
            if number >= len(seen):
                seen.extend(bytes(number - len(seen) + 100_000))
            duplicated += seen[number]
            found += 1
            seen[number] = 1
    return {
        "worst_ms": worst_ms,
        "early": early,
        "duplicated": duplicated,
        "lost": written[0] - sum(seen),
    }


def commit(bootstrap: str, topic: str) -> dict[str, object]:
    """The least that a service which delivers in transactions does: one record in a transaction,
    every COMMIT_S, with the client's default settings. The longest time until a record was
    committed, by the second in which it was to be."""
    ended = _input_ended()
    settings = {"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 2}
    worst_ms: dict[int, float] = {}
    producer: Producer | None = None
    while not ended.is_set():
        due_s = time.time()
        is_committed = False
        while not is_committed and not ended.is_set():
            try:
                if producer is None:
                    producer = Producer(settings)
                    producer.init_transactions(FLUSH_S)
                producer.begin_transaction()
                producer.produce(topic, b"reference")
                producer.commit_transaction(FLUSH_S)
                is_committed = True
            except KafkaException as error:
                producer = _after(producer, error)
        late_ms = round((time.time() - due_s) * 1_000, 1)
        worst_ms[int(due_s)] = max(worst_ms.get(int(due_s), 0.0), late_ms)
        ended.wait(COMMIT_S)
    return {"worst_ms": worst_ms}


def _after(producer: Producer | None, error: KafkaException) -> Producer | None:
    """Return the producer for the next attempt; None: a new one."""
    if producer is None or not error.args[0].txn_requires_abort():
        return None
    try:
        producer.abort_transaction(FLUSH_S)
    except KafkaException:
        return None
    return producer


if __name__ == "__main__":
    verbs: dict[str, Callable[..., object]] = {"write": write, "trace": trace, "commit": commit}
    run = verbs[sys.argv[1]]
    print(json.dumps(run(**json.loads(sys.argv[2]))))
