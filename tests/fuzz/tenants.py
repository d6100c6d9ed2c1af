"""Hostile tenants: one with limits that looks for the messages of another one and measures how long
answers take, and one that asks without end."""

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from chronos.admin.http.routes import table
from chronos.admin.http.tokens import digest
from chronos.core.keys import partition_of
from tests.fuzz.hostile import Goal, Statuses, at_most
from tests.harness.described import Names, Request, requests
from tests.harness.examples import EXAMPLES

EVERYTHING, TENANT, GREEDY = "everything", "tenant", "greedy"
"""Names of the tokens, which are also the tokens."""

ENTRIES: dict[str, dict[str, Any]] = {
    EVERYTHING: {"roles": ["read", "payload", "write", "operate"]},
    GREEDY: {"roles": ["read", "payload"]},
    TENANT: {
        "roles": ["read", "payload", "write", "operate"],
        "targets": ["mine", "mine.*", "chronos.*"],
        "ids": ["mine-*"],
    },
}

SECRET = "s3cret-of-another"
"""In every payload, header and target of the other tenant; no request has it."""

SENDERS = 4
"""Requests at a time."""

PAIRS_LEAST = 200
"""Pairs of requests that a median is made of, at the least."""

APART = 0.10
"""Two medians that differ by more are apart."""

POLLS, LISTS, PENDING = 500, 32, 50_000
"""Long polls and selective lists of the greedy token at a time, and the pending messages that each
list reads."""

OTHERS = [f"theirs-{number}" for number in range(20)]


def token_file(folder: Path) -> Path:
    """The file of the tokens."""
    path = folder / "tokens.yaml"
    entries = [{"name": name, "sha256": digest(name), **entry} for name, entry in ENTRIES.items()]
    path.write_text(json.dumps({"tokens": entries}))
    return path


class _Asker:
    """Requests with one token, over connections that stay open."""

    def __init__(self, goal: Goal, token: str) -> None:
        self._base = f"http://127.0.0.1:{goal.port}"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(
            headers=self._headers, connector=aiohttp.TCPConnector(limit=0)
        )

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body; 0 without an answer."""
        from yarl import URL

        try:
            url = URL(self._base + path, encoded=True)
            async with self._session.request(method, url, json=body) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return 0, b""

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


async def _prepare(everything: _Asker) -> tuple[Names, Names]:
    """Messages of another tenant; their names, and names that nobody uses."""
    target = {"topic": SECRET, "headers": {"x": SECRET}}
    batch = [
        {"target": target, "value": SECRET, "delay": "1h", "id": name}
        for name in (*OTHERS, "mine-t")
    ]
    _, body = await everything.ask(
        "POST", "/v1/messages", [*batch, {"target": target, "value": SECRET, "delay": "1h"}]
    )
    generated = json.loads(body)[-1]["id"]
    shard, due, offset = generated.split("-")
    for name in OTHERS:
        await everything.ask("GET", f"/v1/messages/{name}")
    _, body = await everything.ask(
        "POST", "/v1/jobs", {"action": "count", "filter": {"target": SECRET}}
    )
    job = json.loads(body)["id"]
    _, body = await everything.ask("GET", "/v1/messages?limit=1")
    after = json.loads(body)["after"]
    _, body = await everything.ask("GET", "/v1/shards")
    shards = len(json.loads(body)["shards"])
    # The shards are not equally busy: both ids are of the same one.
    alike = (f"mine-{letter}" for letter in "abcdefghijklmnopqrs")
    absent = next(
        each
        for each in alike
        if partition_of(each.encode(), shards) == partition_of(b"mine-t", shards)
    )
    return (
        Names("theirs", generated, "mine-t", job, after),
        Names("nobody", f"{shard}-{int(due) + 1}-{offset}", absent, "cafe" * 3, "A" * len(after)),
    )


async def _state(everything: _Asker, names: Names) -> list[Any]:
    """What the other tenant has."""
    ids = [*OTHERS, "mine-t", names.generated]
    return [
        json.loads((await everything.ask("GET", f"/v1/messages/{each}?payload=true"))[1])
        for each in ids
    ]


def _merged(first: Request, second: Request) -> Request:
    """The parameters and fields of two requests to one route."""
    path, _, query = second.path.partition("?")
    joined = "&".join(each for each in (first.path.partition("?")[2], query) if each)
    body = first.body
    if isinstance(first.body, dict) and isinstance(second.body, dict):
        body = first.body | second.body
    return Request(f"{first.place}, {second.place}", f"{path}?{joined}" if joined else path, body)


async def tenants(goal: Goal, seconds: float, seed: int) -> Statuses:
    """Requests with the names of another tenant in every parameter and field, and in two at a
    time."""
    statuses: Statuses = Counter()
    everything, tenant = _Asker(goal, EVERYTHING), _Asker(goal, TENANT)
    try:
        names, _ = await _prepare(everything)
        before = await _state(everything, names)
        tried = [
            (route.method, list(requests(route, names, EXAMPLES[route.name])))
            for route in table(None)
            if route.role not in ("open", "node")
        ]
        ends_s = time.monotonic() + seconds

        async def speak(at: int) -> None:
            chance = random.Random(f"{seed}-{at}")
            while time.monotonic() < ends_s:
                method, found = chance.choice(tried)
                each = chance.choice(found)
                if chance.random() < 0.5:
                    each = _merged(each, chance.choice(found))
                status, body = await tenant.ask(method, each.path, each.body)
                statuses[str(status or "none")] += 1
                statuses["seen"] += SECRET.encode() in body

        await asyncio.gather(*(speak(at) for at in range(SENDERS)))
        statuses["changed"] += await _state(everything, names) != before
    finally:
        await everything.close()
        await tenant.close()
    return statuses


async def timing(goal: Goal, seconds: float, seed: int) -> Statuses:
    """Pairs of requests, one for what belongs to another and one for what is not there, in random
    order; their medians."""
    statuses: Statuses = Counter()
    everything, tenant = _Asker(goal, EVERYTHING), _Asker(goal, TENANT)
    chance = random.Random(seed)
    try:
        theirs, nobody = await _prepare(everything)
        kinds = [
            *(("GET", "/v1/messages/{}", each) for each in ("generated", "own")),
            *(("DELETE", "/v1/messages/{}", each) for each in ("generated", "own")),
            *(
                ("GET", "/v1/messages?id_prefix={}", each)
                for each in ("generated", "own", "tenant")
            ),
            ("GET", "/v1/dead-letters/{}", "own"),
            ("GET", "/v1/rejected/{}", "own"),
            ("GET", "/v1/jobs/{}", "job"),
        ]
        ends_s = time.monotonic() + seconds
        took: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {
            kind: ([], []) for kind in kinds
        }
        while (
            time.monotonic() < ends_s or min(len(found) for found, _ in took.values()) < PAIRS_LEAST
        ):
            for kind in kinds:
                method, path, field = kind
                order = [0, 1]
                chance.shuffle(order)
                for which in order:
                    began_s = time.perf_counter()
                    status, _ = await tenant.ask(
                        method, path.format(getattr((theirs, nobody)[which], field))
                    )
                    took[kind][which].append(time.perf_counter() - began_s)
                    statuses[str(status or "none")] += 1
        for (method, path, field), (found, absent) in took.items():
            medians = statistics.median(found), statistics.median(absent)
            ratio = medians[0] / medians[1]
            print(
                f"  {method} {path.format(field)}: {medians[0] * 1e3:.2f} ms of another, "
                f"{medians[1] * 1e3:.2f} ms absent"
            )
            statuses["apart"] += not 1 - APART <= ratio <= 1 + APART
    finally:
        await everything.close()
        await tenant.close()
    return statuses


async def greedy(goal: Goal, seconds: float, _: int) -> Statuses:
    """A token without limits of its own that waits, and lists what is not there, as often as it is
    answered."""
    statuses: Statuses = Counter()
    everything, asker = _Asker(goal, EVERYTHING), _Asker(goal, GREEDY)
    ends_s = time.monotonic() + seconds

    async def repeat(path: str) -> None:
        while time.monotonic() < ends_s:
            status, _ = await asker.ask("GET", path)
            statuses[str(status or "none")] += 1
            await asyncio.sleep(0 if status == 200 else 1)

    try:
        batch = [{"target": {"topic": "later"}, "value": "v", "delay": "1d"} for _ in range(500)]
        for _ in range(PENDING // len(batch)):
            await everything.ask("POST", "/v1/messages", batch)
        polls = [repeat("/v1/topics/never/records?wait=10s") for _ in range(POLLS)]
        await at_most(
            seconds + 5, [*polls, *(repeat("/v1/messages?target=nowhere") for _ in range(LISTS))]
        )
    finally:
        await everything.close()
        await asker.close()
    return statuses
