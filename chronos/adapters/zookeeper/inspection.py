"""A look at ZooKeeper from outside the cluster, for `chronos doctor`: can a node have its session here, and write?

Joins nothing and changes nothing that a node would not make itself at its first start; what it writes goes with its session.
"""

import time

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from msgspec import Struct

from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator
from chronos.adapters.zookeeper.session import ANSWER_S, CONNECT_S, MEMBERS, ROLES
from chronos.core.roles import Member, Roles
from chronos.errors import CoordinatorUnavailable


class ClusterInspection(Struct, frozen=True, kw_only=True):
    """What was found."""

    hosts: str
    base: str
    """The znode under which the cluster lives."""
    asked_ms: int
    """The session's time-out that was asked for."""
    given_ms: int
    """The one that the server gave."""
    clock_ms: int
    """How far the server's clock is from this machine's; 0 where the answer came too late to tell."""
    members: dict[str, Member]
    unreadable: tuple[str, ...]
    """Members of which another version of Chronos wrote what they are."""
    roles: Roles | None


def survey(coordinator: ZooKeeperCoordinator) -> ClusterInspection:
    """Begin a session with the coordinator's settings, write, read, and end it. Raises CoordinatorUnavailable."""
    settings, base = coordinator._settings, coordinator._base
    client = KazooClient(**{**settings, "connection_retry": {"max_tries": 1}})
    hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
    try:
        if not client.start_async().wait(CONNECT_S):
            raise CoordinatorUnavailable(f"no ZooKeeper server answers within {CONNECT_S:g} s ({hosts})")
        return _survey(client, base, hosts, asked_ms=round(settings["timeout"] * 1_000))
    except KazooTimeoutError as error:
        raise CoordinatorUnavailable(f"ZooKeeper did not answer within {ANSWER_S:g} s") from error
    except KazooException as error:
        reason = str(error) or type(error).__name__
        raise CoordinatorUnavailable(f"ZooKeeper did not do what it was asked: {reason} (under {base})") from error
    finally:
        client.stop()
        client.close()


def _survey(client: KazooClient, base: str, hosts: str, *, asked_ms: int) -> ClusterInspection:
    client.ensure_path_async(f"{base}/{MEMBERS}").get(timeout=ANSWER_S)
    before_ms = time.time_ns() // 1_000_000
    made = client.create_async(f"{base}/doctor-", b"", ephemeral=True, sequence=True).get(timeout=ANSWER_S)
    after_ms = time.time_ns() // 1_000_000
    stat = client.exists_async(made).get(timeout=ANSWER_S)
    client.delete_async(made).get(timeout=ANSWER_S)
    members: dict[str, Member] = {}
    unreadable = []
    for name in sorted(client.get_children_async(f"{base}/{MEMBERS}").get(timeout=ANSWER_S)):
        try:
            members[name] = msgspec.json.decode(_read(client, f"{base}/{MEMBERS}/{name}"), type=Member)
        except msgspec.MsgspecError:
            unreadable.append(name)
    return ClusterInspection(
        hosts=hosts,
        base=base,
        asked_ms=asked_ms,
        given_ms=int(client._session_timeout),
        clock_ms=max(before_ms - stat.ctime, stat.ctime - after_ms, 0),
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
