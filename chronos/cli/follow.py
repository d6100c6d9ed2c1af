"""`chronos tail`: one thread for each partition reads by long poll, the main thread prints."""

import base64
import queue
import select
import sys
import threading
import time
from typing import Any

import typer

from chronos.cli.connect import connect
from chronos.cli.output import NOT_SHOWN, Format, OutputClosed, local, note, printable, put_bytes, put_json
from chronos.client import ClientError, NotFound

WAIT = "20s"
"""Length of one poll."""

READ_TOGETHER = 500
"""Records of one answer."""

LOOK_AGAIN_S = 0.5
"""How often to look for a topic that does not exist yet."""

CLOSED_LOOK_S = 0.2
"""How often to check, while no record arrives, that stdout still has a reader."""

Arrival = list[dict[str, Any]] | ClientError


def follow(
    server: str, output: Format, topic: str, *, start: str, count: int | None, partition: int | None, headers: bool
) -> None:
    """Print records until `count` are printed, stdout is closed, or Ctrl-C."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"TOPIC: {printable(topic)} is not UTF-8") from None
    if start not in ("beginning", "end") and not start.isdecimal():
        raise typer.BadParameter(f"--from {start}: write beginning, end, or an offset")
    arrivals: queue.Queue[Arrival] = queue.Queue(maxsize=100)
    try:
        for number, offset in _begin(server, topic, start, partition):
            thread = threading.Thread(target=_read, args=(server, topic, number, offset, arrivals), daemon=True)
            thread.start()
        _print_all(arrivals, output, count, headers=headers)
    except KeyboardInterrupt:
        return


def _begin(server: str, topic: str, start: str, partition: int | None) -> list[tuple[int, int]]:
    """`(partition, offset)` to start from; waits for a topic that does not exist yet."""
    is_noted = False
    with connect(server) as client:
        while True:
            found = {each["topic"]: each["partitions"] for each in client.ask("/v1/topics", topic=topic)["topics"]}
            if topic in found:
                break
            if not is_noted:
                note(f"there is no topic {printable(topic)} yet; waiting for its first record")
            is_noted = True
            # All records of a topic that appears later are new.
            start = "beginning" if start == "end" else start
            time.sleep(LOOK_AGAIN_S)
            _check_reader()
    chosen = [each for each in found[topic] if partition is None or each["partition"] == partition]
    if not chosen:
        raise NotFound(f"{topic} has partitions 0 to {len(found[topic]) - 1}")
    if start.isdecimal():
        return [(each["partition"], int(start)) for each in chosen]
    return [(each["partition"], each["start" if start == "beginning" else "end"]) for each in chosen]


def _read(server: str, topic: str, partition: int, offset: int, arrivals: "queue.Queue[Arrival]") -> None:
    with connect(server) as client:
        while True:
            try:
                found = client.records(topic, partition=partition, offset=offset, limit=READ_TOGETHER, wait=WAIT)
            except ClientError as error:
                arrivals.put(error)
                return
            offset = found["next_offset"]
            if found["records"]:
                arrivals.put(found["records"])


def _print_all(arrivals: "queue.Queue[Arrival]", output: Format, count: int | None, *, headers: bool) -> None:
    printed = 0
    while True:
        try:
            arrival = arrivals.get(timeout=CLOSED_LOOK_S)
        except queue.Empty:
            _check_reader()
            continue
        if isinstance(arrival, ClientError):
            raise arrival
        for record in arrival:
            if output is Format.json:
                put_json(record)
            else:
                _print(record, headers=headers)
            printed += 1
            if printed == count:
                return


def _check_reader() -> None:
    """OutputClosed if stdout is a pipe whose reader has closed it: `tail | head -1` then ends without a next record."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise OutputClosed


def _print(record: dict[str, Any], *, headers: bool) -> None:
    if headers:
        key = record["key"] if "key" in record else f"base64:{record['key_base64']}"
        key = "" if key is None else f"key={key} "
        shown = " ".join(f"{name}={content!r}" if not isinstance(content, str) else f"{name}={content}"
                         for name, content in record.get("headers", {}).items())  # fmt: skip
        print(f"[{record['partition']}:{record['offset']}] {local(record['timestamp'])} "
              f"{printable(key + shown)}")  # fmt: skip
    _print_value(record)


def _print_value(record: dict[str, Any]) -> None:
    """The payload byte for byte, so that it can be piped; on a terminal with its control characters escaped."""
    if "value" not in record and "value_base64" not in record:
        # Nothing is written to a pipe that would read it as a payload.
        note(f"payload of offset {record['offset']} {NOT_SHOWN}")
        return
    value = record.get("value")
    data = base64.b64decode(record["value_base64"]) if "value_base64" in record else (value or "").encode()
    if sys.stdout.isatty():
        print(printable(data.decode(errors="backslashreplace")) if value is not None or data else "(null)", flush=True)
    else:
        put_bytes(data + b"\n")
