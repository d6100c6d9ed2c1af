"""The load of a drill and its reader, each in a separate process that is ended through its standard
input.

`write` produces until its input ends, and prints how many messages it wrote. `trace` gets that
number as one line of input, reads until it has found them all, and prints what it found."""

import json
import os
import sys
import threading
import time

from confluent_kafka import Producer

from tests.bench.load import PRODUCER, VALUE_BYTES, headers, read

FLUSH_S = 120.0
"""How long the acknowledgement of the last messages may take."""


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
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
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


if __name__ == "__main__":
    run = write if sys.argv[1] == "write" else trace
    print(json.dumps(run(**json.loads(sys.argv[2]))))
