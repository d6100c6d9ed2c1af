"""The hostile clients: they hold connections, send bombs and bytes that are almost HTTP."""

import asyncio
import gzip
import json
import random
import resource
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

IDLE = 5_000
POLLS = 2_000
BOMBS = 20
BOMB_BYTES = 1_000_000_000
"""What a bomb takes when it is decompressed; compressed it has a megabyte."""

SPEAKERS = 16
"""Connections that send almost HTTP at a time."""

SENDERS = 1_920
"""Connections that send a body which nobody reads."""

UNREAD_BYTES = 400_000
"""What each of them sends."""

SERIES = 300
"""Cron expressions in one body: below the bound for one request."""

Statuses = Counter[str]
"""Number of answers by their status; `none` without an answer."""


class Goal(NamedTuple):
    """The service under attack."""

    port: int
    bootstrap: str = ""
    """Its brokers; empty for the embedded log."""
    delay: str = ""
    """Its delay topic."""
    target: str = ""
    """A topic that messages may name."""


Campaign = Callable[[Goal, float, int], Coroutine[Any, Any, Statuses]]
"""`(goal, seconds, seed)`."""


async def at_most(seconds: float, work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of it together, and end what has not ended by itself."""
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def speakers(
    seconds: float, seed: int, speak: Callable[[random.Random], Coroutine[Any, Any, None]]
) -> None:
    """SPEAKERS that speak again and again, as fast as they are answered, each with chances of its
    own."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + seconds

    async def one(at: int) -> None:
        chance = random.Random(f"{seed}-{at}")
        while loop.time() < ends_s:
            await speak(chance)

    await asyncio.gather(*(one(at) for at in range(SPEAKERS)))


async def quiet(_: Goal, seconds: float, __: int) -> Statuses:
    """Nothing: the load alone, to compare."""
    await asyncio.sleep(seconds)
    return Counter()


async def connections(goal: Goal, seconds: float, _: int) -> Statuses:
    """5,000 idle connections, 2,000 long polls and 20 bombs."""
    statuses: Statuses = Counter()
    # Members of gzip follow each other, so one is enough.
    bomb = gzip.compress(b"\0" * (BOMB_BYTES // 1_000)) * 1_000
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nContent-Encoding: gzip\r\n"
    )
    post = head + b"Content-Length: %d\r\n\r\n" % len(bomb) + bomb

    async def one(request: bytes, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        statuses[await exchange(goal.port, request)] += 1

    def poll(at: int) -> bytes:
        # Of a topic that is there, and of some that are not.
        topic = "load" if at % 2 else f"none-{at % 50}"
        return (
            f"GET /v1/topics/{topic}/records?wait=60s&offset=1000000 HTTP/1.1\r\nHost: "
            "localhost\r\n\r\n"
        ).encode()

    work = [one(b"", seconds / 3 * at / IDLE) for at in range(IDLE)]
    work += [one(poll(at), seconds / 3 * at / POLLS) for at in range(POLLS)]
    work += [one(post, seconds / 2 * at / BOMBS) for at in range(BOMBS)]
    await at_most(seconds, work)
    return statuses


async def reconnecting(goal: Goal, seconds: float, _: int) -> Statuses:
    """5,000 idle connections, each opened again as soon as it is closed."""
    statuses: Statuses = Counter()

    async def one() -> None:
        while True:
            statuses[await exchange(goal.port, b"")] += 1
            await asyncio.sleep(1)

    await at_most(seconds, [one() for _ in range(IDLE)])
    return statuses


async def almost_http(goal: Goal, seconds: float, seed: int) -> Statuses:
    """Requests with a few bytes changed, removed, repeated or added, cut off anywhere, as fast as
    they are answered."""
    statuses: Statuses = Counter()

    async def speak(chance: random.Random) -> None:
        statuses[
            await exchange(goal.port, mutated(chance.choice(CORPUS), chance), timeout_s=2.0)
        ] += 1

    await speakers(seconds, seed, speak)
    return statuses


async def unread(goal: Goal, seconds: float, _: int) -> Statuses:
    """1,920 connections that each send 400 kB with a request that waits for something else."""
    statuses: Statuses = Counter()
    head = (
        f"GET /v1/topics/none/records?wait={seconds:.0f}s HTTP/1.1\r\nHost: "
        f"localhost\r\nContent-Length: {UNREAD_BYTES}\r\n\r\n"
    )
    data = head.encode() + b" " * UNREAD_BYTES

    async def one(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        statuses[await exchange(goal.port, data)] += 1

    await at_most(seconds, [one(seconds / 3 * at / SENDERS) for at in range(SENDERS)])
    return statuses


async def numbers(goal: Goal, seconds: float, seed: int) -> Statuses:
    """Numbers of thousands of digits, tokens that are no text, and control characters, as fast as
    they are answered."""
    statuses: Statuses = Counter()
    digits = "9" * 4_301
    paths = [
        f"/v1/shards/{digits}/checkpoint",
        "/v1/shards/0/checkpoint",
        f"/v1/shards/{digits}/digest",
        f"/v1/messages?after={digits}-1-1",
        f"/v1/messages?limit={digits}",
        f"/v1/timeline?from={digits}",
        "/v1/messages/%1b[2J%07",
        f"/v1/dead-letters?after={digits}",
    ]

    async def speak(chance: random.Random) -> None:
        token = bytes(chance.randrange(128, 256) for _ in range(8))
        sent = request(
            "GET", chance.choice(paths), b"", b"Chronos-Node: node", b"Chronos-Token: " + token
        )
        statuses[await exchange(goal.port, sent, timeout_s=5.0)] += 1

    await speakers(seconds, seed, speak)
    return statuses


async def crons(goal: Goal, seconds: float, seed: int) -> Statuses:
    """Bodies full of cron expressions that never fire, or that fire every 28 years, half of them
    from clients that do not wait."""
    statuses: Statuses = Counter()

    async def speak(chance: random.Random) -> None:
        days = chance.choice(
            ("0 */31 * 1#5,2#5", "0 29 2 */7", "*/1,*/1,*/1,*/1,*/1,*/1 */31 * 1#5")
        )
        repeats = (
            f"cron {chance.randrange(60)},{chance.randrange(60)} {days}" for _ in range(SERIES)
        )
        messages = [
            {"target": {"topic": "never"}, "value": "", "repeat": repeat} for repeat in repeats
        ]
        sent = request("POST", "/v1/messages", json.dumps(messages).encode())
        statuses[await exchange(goal.port, sent, timeout_s=chance.choice((0.05, 10.0)))] += 1

    await speakers(seconds, seed, speak)
    return statuses


def request(method: str, path: str, body: bytes = b"", *more: bytes) -> bytes:
    """A well-formed request that closes its connection."""
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: localhost", b"Connection: close", *more]
    if body:
        lines += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


CHUNKED = b"\r\n".join(
    (
        b"POST /v1/messages HTTP/1.1",
        b"Host: localhost",
        b"Content-Type: application/json",
        b"Transfer-Encoding: chunked",
        b"",
        b"10",
        b'{"target": {"top',
        b"9",
        b'ic": "a"}',
        b"0",
        b"",
        b"",
    )
)
CORPUS = [
    request("GET", "/v1/messages?limit=5&target=t&header=a%3Db"),
    request("GET", "/v1/messages/fuzz-1?payload=true"),
    request(
        "POST",
        "/v1/messages",
        (
            b'{"target": {"topic": "fuzz", "headers": {"a": "b"}}, "value": "v", "delay": "1h", '
            b'"id": "fuzz-1"}'
        ),
    ),
    request(
        "POST",
        "/v1/messages",
        b'[{"target": {"topic": "fuzz"}, "value_base64": "AAAA", "deliver_at": 4102444800000}]',
    ),
    request("PATCH", "/v1/messages/fuzz-1", b'{"delay": "2h"}'),
    request("DELETE", "/v1/messages/fuzz-1"),
    request("POST", "/v1/jobs", b'{"action": "count", "filter": {"target": "fuzz"}}'),
    request("GET", "/v1/dead-letters?limit=10"),
    request("GET", "/v1/rejected?source=chronos.delay/0&limit=10"),
    request("GET", "/v1/rejected/fuzz-1"),
    request("GET", "/v1/messages?state=settled&key=fuzz"),
    request("POST", "/v1/dead-letters/replay", b'{"target": "fuzz"}'),
    request("PUT", "/v1/rates/fuzz", b'{"rate": "5/s burst 9"}'),
    request("GET", "/v1/topics/fuzz/records?wait=10ms"),
    request("GET", "/v1/timeline?from=0&to=99999999&step=60000"),
    request(
        "GET", "/", b"", b"Sec-Fetch-Site: cross-site", b"Origin: http://a.example", b"Cookie: a=b"
    ),
    CHUNKED,
]
TOKENS = [
    b"\r\n",
    b"\0",
    b":",
    b" ",
    b"%",
    b"{",
    b"[",
    b'"',
    b"-1",
    b"99999999999999999999",
    b"\xff\xfe",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Host: [\r\n",
    b"Upgrade: websocket\r\n",
    b"a" * 9_000,
    b"Expect: 100-continue\r\n",
    b"[" * 2_000,
    b"\\ud800",
]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The request with one to six changes."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(found) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(found):
            found[at] = chance.randrange(256)
        elif kind == 1:
            del found[at : at + chance.randint(1, 20)]
        elif kind == 2:
            found[at:at] = found[at : at + chance.randint(1, 200)]
        elif kind == 3:
            found[at:at] = chance.choice(TOKENS)
        elif kind == 4:
            found[at:at] = chance.randbytes(chance.randint(1, 30))
        elif chance.random() < 0.3:
            del found[at:]
    return bytes(found)


async def exchange(port: int, data: bytes, timeout_s: float = 600.0) -> str:
    """Send the bytes on a connection of its own and read until it is closed, or after the time; the
    status of the answer."""
    writer = None
    found = b""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            await writer.drain()
            while chunk := await reader.read(65_536):
                found = (found + chunk)[:100]
    except (OSError, TimeoutError):
        pass
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError):
                writer.transport.abort()
    return (
        found.split(b" ")[1].decode("ascii", "replace") if found.startswith(b"HTTP/1.") else "none"
    )


def attack(campaign: Campaign, goal: Goal, seconds: float, seed: int) -> Statuses:
    """Run a campaign, in a process of its own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return asyncio.run(campaign(goal, seconds, seed))
