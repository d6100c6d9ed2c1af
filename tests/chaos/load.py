"""The load of a drill and its reader, each a process of its own; both go on until their standard input says how it ends.

`write` takes the end of its input as the end of the load, and prints how many messages it wrote. `trace` is told that
number in one line, reads until it has found them all, and prints what it found.
"""

import json
import os
import sys
import threading
import time

from confluent_kafka import Producer

from tests.bench.load import PRODUCER, VALUE_BYTES, headers, read

FLUSH_S = 120.0
"""How long the last messages may take to be acknowledged."""


def write(
    bootstrap: str, topic: str, target: str, rate: int, seconds_max: float, lowest_ms: int, highest_ms: int
) -> dict[str, int]:
    """Write at an even rate; each message is due `lowest_ms` to `highest_ms` later, its number is its value's head."""
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
    # Idempotent: what a broker's end makes the client send again must be there once. Few batches: while five of them
    # are under way to a broker, the most that idempotence allows, the client waits in a busy loop (measured).
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "linger.ms": 50, "enable.idempotence": True,
                         "log_level": 2})  # fmt: skip
    padding = os.urandom(VALUE_BYTES - 8)
    start_s = time.monotonic()
    count = 0
    span_ms = highest_ms - lowest_ms
    while not told.is_set():
        past_s = time.monotonic() - start_s
        if past_s > seconds_max:
            raise RuntimeError(f"nobody ended the load within {seconds_max:g} s")
        behind = int(past_s * rate) - count
        if behind <= 0:
            producer.poll(0.01)
            continue
        now_ms = time.time_ns() // 1_000_000
        for number in range(count, count + behind):
            due_ms = now_ms + lowest_ms + (number * 7_919) % (span_ms + 1)
            producer.produce(topic, number.to_bytes(8, "big") + padding, None, headers=headers(due_ms, target))
        count += behind
        producer.poll(0)
    if producer.flush(FLUSH_S) > 0:
        raise RuntimeError("the load was not written")
    return {"count": count}


def trace(bootstrap: str, topic: str, rest_s: float) -> dict[str, object]:
    """The worst lateness by the second in which messages were due, and what was wrong.

    Watermarks once it has found as many as it is told were written, or `rest_s` after it was told.
    """
    told: list[int] = []
    threading.Thread(target=lambda: told.extend(map(int, sys.stdin)), daemon=True).start()
    worst_ms: dict[int, float] = {}
    seen = bytearray()
    doubled = early = found = 0
    deadline = None
    for messages in read(bootstrap, topic):
        now_ms = time.time_ns() / 1_000_000
        if told and deadline is None:
            deadline = time.monotonic() + rest_s
        if deadline is not None and (time.monotonic() > deadline or (messages is None and found >= told[0])):
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
            doubled += seen[number]
            found += 1
            seen[number] = 1
    return {"worst_ms": worst_ms, "early": early, "doubled": doubled, "lost": told[0] - sum(seen)}


if __name__ == "__main__":
    print(json.dumps({"write": write, "trace": trace}[sys.argv[1]](**json.loads(sys.argv[2]))))
