"""The cluster as ZooKeeper shows it to a client that does not join, for `chronos doctor`.

It leaves nothing but znodes that a node's first start creates too: it deletes its test znode, which
at the latest ends with its session."""

import time

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator
from chronos.adapters.zookeeper.session import ANSWER_S, CONNECT_S, MEMBERS, ROLES
from chronos.core.cluster.roles import (
    Member,
    Roles,
)
from chronos.core.timefmt import format_duration
from chronos.errors import CoordinatorUnavailable
from chronos.ports import CLOCK_TOLERANCE_MS, ClusterInspection


def inspect(coordinator: ZooKeeperCoordinator) -> ClusterInspection:
    """Start a session with the coordinator's settings, write, read, and end it. Raises
    CoordinatorUnavailable."""
    settings, base = coordinator.settings, coordinator.base
    client = KazooClient(**{**settings, "connection_retry": {"max_tries": 1}})
    hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
    try:
        if not client.start_async().wait(CONNECT_S):
            raise CoordinatorUnavailable(
                f"no ZooKeeper server answers within {CONNECT_S:g} s ({hosts})"
            )
        return _inspect(client, base, hosts, asked_ms=round(settings["timeout"] * 1_000))
    except KazooTimeoutError as error:
        raise CoordinatorUnavailable(f"ZooKeeper did not answer within {ANSWER_S:g} s") from error
    except KazooException as error:
        reason = str(error) or type(error).__name__
        raise CoordinatorUnavailable(
            f"ZooKeeper refused the request: {reason} (under {base})"
        ) from error
    finally:
        client.stop()
        client.close()


def _inspect(client: KazooClient, base: str, hosts: str, *, asked_ms: int) -> ClusterInspection:
    client.ensure_path_async(f"{base}/{MEMBERS}").get(timeout=ANSWER_S)
    before_ms = time.time_ns() // 1_000_000
    made = client.create_async(f"{base}/doctor-", b"", ephemeral=True, sequence=True).get(
        timeout=ANSWER_S
    )
    after_ms = time.time_ns() // 1_000_000
    stat = client.exists_async(made).get(timeout=ANSWER_S)
    client.delete_async(made).get(timeout=ANSWER_S)
    members: dict[str, Member] = {}
    unreadable = []
    for name in sorted(client.get_children_async(f"{base}/{MEMBERS}").get(timeout=ANSWER_S)):
        try:
            members[name] = msgspec.json.decode(
                _read(client, f"{base}/{MEMBERS}/{name}"), type=Member
            )
        except msgspec.MsgspecError:
            unreadable.append(name)
    given_ms = int(client._session_timeout)
    clock_ms = max(before_ms - stat.ctime, stat.ctime - after_ms, 0)
    notes = []
    if given_ms != asked_ms:
        notes.append(
            f"the session timeout is {format_duration(given_ms)}, not {format_duration(asked_ms)}"
            " (coordinator.zookeeper.session_timeout): the server allows 2 to 20 of its tickTime"
        )
    if clock_ms > CLOCK_TOLERANCE_MS:
        notes.append(
            f"its clock and this machine's differ by {clock_ms} ms. Nothing depends on it, but "
            "one of them is wrong: check NTP on both"
        )
    return ClusterInspection(
        checked=f"{hosts}: a session was opened, and {base} can be written",
        notes=tuple(notes),
        members=members,
        unreadable=tuple(unreadable),
        roles=_roles(_read(client, f"{base}/{ROLES}")),
    )


def _read(client: KazooClient, path: str) -> bytes:
    try:
        data: bytes = client.get_async(path).get(timeout=ANSWER_S)[0]
    except NoNodeError:
        return b""
    return data


def _roles(data: bytes) -> Roles | None:
    try:
        return msgspec.json.decode(data, type=Roles) if data else None
    except msgspec.MsgspecError:
        return None
