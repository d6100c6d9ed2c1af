"""The nodes of a machine: how many, and with which settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chronos.cli.service import serve
from chronos.cli.service.serve import PROCESSES_MAX, ProcessPlace, check, cores, count_of, retiring
from chronos.config import Config, load
from chronos.errors import ConfigurationError

CLUSTER = (
    "log.kind=kafka",
    "log.kafka.bootstrap_servers=localhost:9092",
    "coordinator.kind=kafka",
    "node.id=n1",
)


def config(*settings: str) -> Config:
    """The configuration with these settings."""
    return load(None, {}, [*CLUSTER, *settings])


def of(place: str, *settings: str) -> Config:
    """The configuration of one of the nodes of a machine, as its process loads it."""
    first = config(*settings)
    return config(*settings, *ProcessPlace.parse(place).settings(first))


def test_the_first_node_keeps_its_name_its_port_and_its_directory() -> None:
    node = of("1/4", "node.data_dir=data", "admin.port=7000", "store.block_cache=64MiB").node
    assert (node.id, node.host, node.data_dir) == ("n1", "n1", "data")


def test_the_other_nodes_have_names_ports_and_directories_of_their_own() -> None:
    """Below the first directory, which may be the only one on a lasting disk."""
    found = of(
        "3/4",
        "node.data_dir=data",
        "admin.port=7000",
        "admin.advertised=https://[::1]:7000/",
        "node.host=rack-1",
        "store.block_cache=64MiB",
    )
    assert (found.node.id, found.node.host) == ("n1_3", "rack-1")
    assert Path(found.node.data_dir) == Path("data/processes/3")
    assert found.admin.port == 7002
    assert found.admin.advertised == "https://[::1]:7002"
    assert found.store.block_cache == 16 << 20


def test_nodes_on_any_free_port_stay_on_any_free_port() -> None:
    assert of("3/4", "admin.port=0").admin.port == 0


def test_an_advertised_url_without_a_port_leads_to_no_second_node() -> None:
    with pytest.raises(ConfigurationError, match="has no port"):
        of("2/2", "admin.advertised=http://n1")


@pytest.mark.parametrize(
    ("text", "shards", "expected"),
    [("1", 4, 1), ("3", 2, 3), (str(PROCESSES_MAX), 4, PROCESSES_MAX), ("auto", 1, 1)],
)
def test_the_number_of_processes(text: str, shards: int, expected: int) -> None:
    assert count_of(text, config(f"shards={shards}")) == expected


@pytest.mark.parametrize("text", ["0", "-1", "65", "many", "1.5", "", "\u00b2", "99999"])
def test_a_number_of_processes_that_is_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write 1 to 64, or auto"):
        count_of(text, config())


def test_nodes_beyond_the_number_retire(tmp_path: Path) -> None:
    """Those with a directory from an earlier start; nothing else in there is touched."""
    for name in ("2", "3", "10", "x", "notes.txt", "2\u00b2", "0"):
        (tmp_path / "processes" / name).mkdir(parents=True)
    found = config(f"node.data_dir={tmp_path}")
    assert [retiring(found, count) for count in (1, 2, 3, 10)] == [[2, 3, 10], [3, 10], [10], []]
    assert ProcessPlace.parse("3/2").retires
    assert not ProcessPlace.parse("2/2").retires


VOTERS = (
    "log.kind=kafka",
    "log.kafka.bootstrap_servers=localhost:9092",
    "coordinator.kind=raft",
    "coordinator.secret=" + "s" * 32,
    "node.id=n1",
)


@pytest.mark.parametrize(
    ("settings", "place", "text"),
    [
        ([], "2/2", "^--processes: .*log.kind is embedded and coordinator.kind is standalone; set"),
        (CLUSTER[:2], "2/2", "^--processes: .* coordinator.kind is standalone; set"),
        (["node.data_dir=d"], "2/1", "^d/processes/2: from an earlier start .* or delete it if"),
        (
            [*VOTERS, "coordinator.raft.peers=n1=a:1,n1_2=b:1,n1_3=c:1"],
            "2/2",
            "n1_2 cannot be a voter",
        ),
    ],
)
def test_a_configuration_for_one_node_only_is_refused(
    settings: list[str], place: str, text: str
) -> None:
    """A directory of an earlier start is named, where it is the reason."""
    with pytest.raises(ConfigurationError, match=text):
        check(load(None, {}, settings), [ProcessPlace.parse("1/2"), ProcessPlace.parse(place)])


def test_the_first_node_may_be_a_voter() -> None:
    found = load(None, {}, [*VOTERS, "coordinator.raft.peers=n1=a:1,n2=b:1,n3=c:1"])
    check(found, [ProcessPlace.parse("1/2"), ProcessPlace.parse("2/2")])


def test_a_port_beyond_the_last_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="65536"):
        of("3/3", "admin.port=65534")


@pytest.mark.parametrize(("quota", "expected"), [("150000 100000", 2), ("max 100000", 3), ("", 3)])
def test_the_quota_of_a_container_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(serve, "CPU_QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota)
    assert cores() == expected
