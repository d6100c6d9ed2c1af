"""The figure `registry`: queries for routes while 500 simulated nodes are registered and keep
registering."""

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from chronos.admin.http.tokens import digest
from tests.bench import figures
from tests.harness.service import Service

if TYPE_CHECKING:
    from tests.bench.figures import Bench

NODES, SHARDS, REPLICAS = 500, 256, 3
REGISTER_EVERY_S = 30.0
"""How often each simulated node registers; once a second one of them with a change."""

CONNECTIONS = 4
"""Each sends its next query when it has the answer to the last one."""

MEASURE_S = 20.0
RATE_LEAST, P99_MS_MOST = 2_000, 10.0
TOKEN = "bench"


def figure_registry(bench: "Bench") -> None:
    """Routes of one shard at a time, as a client asks after a change, and whole tables, as it asks
    every 30 s."""
    directory = bench.directory / bench.name("registry")
    directory.mkdir()
    tokens = directory / "tokens.yaml"
    entry = {"name": TOKEN, "sha256": digest(TOKEN), "roles": ["read", "operate"]}
    tokens.write_text(json.dumps({"tokens": [entry]}))
    with Service(directory / "data", settings={"admin.tokens": tokens}) as service:
        service.token = TOKEN
        service.start()
        for number in range(NODES):
            _register(service, number, 1)
        assert len(service.get("/v1/registry/nodes", cluster="far")["nodes"]) == NODES
        stop = threading.Event()
        renewals = threading.Thread(target=_renew, args=(service, stop))
        renewals.start()
        try:
            one = asyncio.run(_query(service, [f"&shard={shard}" for shard in range(SHARDS)]))
            whole = asyncio.run(_query(service, [""]))
        finally:
            stop.set()
            renewals.join()
    passed = one["rate"] >= RATE_LEAST and one["p99_ms"] <= P99_MS_MOST
    bench.rows += [
        figures.Row(
            figure=f"registry with {NODES} nodes: routes of one shard",
            measured=_text(one),
            bar=f">= {RATE_LEAST:,}/s, p99 <= {P99_MS_MOST:.0f} ms",
            passed=passed,
            detail=one,
        ),
        figures.Row(
            figure=f"registry with {NODES} nodes: all {SHARDS} routes",
            measured=_text(whole),
            bar="-",
            passed=True,
            detail=whole,
        ),
    ]


def _text(found: dict[str, Any]) -> str:
    return (
        f"{found['rate']:,.0f}/s; p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms; "
        f"{found['cpu_us']:.0f} us of processor time each"
    )


def _register(service: Service, number: int, state_version: int) -> None:
    """A simulated node: of each of its shards it is the master or one of two followers."""
    held = [
        (shard, copy)
        for shard in range(SHARDS)
        for copy in range(REPLICAS)
        if (shard * REPLICAS + copy) % NODES == number
    ]
    body = {
        "cluster": "far",
        "instance": f"i{number}",
        "address": f"http://10.0.{number // 250}.{number % 250}:7700",
        "version": "1",
        "state_version": state_version,
        "expire_after": 3_600_000,
        "shards": [
            {"shard": shard, "role": "follower" if copy else "master", "epoch": 1}
            for shard, copy in held
        ],
        "topics": [{"topic": "far.delay", "partitions": SHARDS, "permissions": ["read", "write"]}],
    }
    status, answer = service.ask("PUT", f"/v1/registry/nodes/node-{number}", body)
    assert (status, answer["result"]) == (200, "registered"), answer


def _renew(service: Service, stop: threading.Event) -> None:
    began_s, versions = time.monotonic(), dict.fromkeys(range(NODES), 1)
    for turn in range(1_000_000):
        if stop.wait(max(0.0, began_s + turn * REGISTER_EVERY_S / NODES - time.monotonic())):
            return
        number = turn % NODES
        if turn % round(NODES / REGISTER_EVERY_S) == 0:
            versions[number] += 1
        _register(service, number, versions[number])


async def _query(service: Service, queries: list[str]) -> dict[str, Any]:
    """Answers a second and their latencies over MEASURE_S, after a second that is not counted."""
    latencies: list[float] = []
    count_from_s = time.perf_counter() + 1.0
    end_s = count_from_s + MEASURE_S

    async def connection(offset: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        turn = offset
        while (sent_s := time.perf_counter()) < end_s:
            path = f"/v1/registry/routes?cluster=far&topic=far.delay{queries[turn % len(queries)]}"
            turn += CONNECTIONS
            writer.write(
                (
                    f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
                    f"{TOKEN}\r\n\r\n"
                ).encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if sent_s >= count_from_s:
                latencies.append((time.perf_counter() - sent_s) * 1_000)
        writer.close()

    cpu_s = service.cpu_s()
    await asyncio.gather(*(connection(number) for number in range(CONNECTIONS)))
    cpu_s = service.cpu_s() - cpu_s
    latencies.sort()
    return {
        "rate": len(latencies) / MEASURE_S,
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[len(latencies) * 99 // 100],
        "max_ms": latencies[-1],
        "cpu_us": cpu_s * 1_000_000 * MEASURE_S / (MEASURE_S + 1.0) / len(latencies),
    }
