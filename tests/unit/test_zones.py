"""Time zones: the data of the package `tzdata`, whatever the machine has, and the names that are
accepted."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from pathlib import Path

import pytest
import tzdata

from chronos import headers, zones
from chronos.core.cron import next_cron
from chronos.core.timefmt import parse_time_ms
from tests.harness.table import table

NOON_MS = parse_time_ms("2026-07-01T12:00:00Z")


@pytest.fixture
def _other_zone_data(tmp_path: Path) -> Iterator[None]:
    """Zone data of the machine in which Berlin has the offset of Tokyo, and the zones have other
    names too."""
    before = zoneinfo.TZPATH
    tokyo = (files(tzdata) / "zoneinfo" / "Asia" / "Tokyo").read_bytes()
    for name in ("Europe/Berlin", "localtime", "right/Europe/Berlin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(tokyo)
    zoneinfo.reset_tzpath([str(tmp_path)])
    zoneinfo.ZoneInfo.clear_cache()
    zones._read.cache_clear()
    next_cron.cache_clear()
    yield
    zoneinfo.reset_tzpath(before)
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.usefixtures("_other_zone_data")
def test_the_zone_data_of_the_machine_change_no_time_and_stay_those_of_the_program() -> None:
    assert next_cron("0 15 * * *", "Europe/Berlin", NOON_MS) == NOON_MS + 3_600_000
    assert datetime.fromtimestamp(0, zoneinfo.ZoneInfo("Europe/Berlin")).tzname() == "JST"
    with pytest.raises(ValueError, match="'localtime' is not a time zone"):
        next_cron("0 15 * * *", "localtime", NOON_MS)


def test_every_name_of_the_list_but_factory_is_a_zone() -> None:
    listed = set((files(tzdata) / "zones").read_text().split())
    assert len(listed) > 500
    assert listed - zones.NAMES == {"Factory"}
    for name in sorted(zones.NAMES):
        assert zones.zone_of(name).key == name
    assert zones.zone_of("").key == "UTC"
    assert tzdata.IANA_VERSION == zones.VERSION


@table(
    ("name", "hint"),
    [
        ("europe/lisbon", "did you mean Europe/Lisbon?"),
        ("UTC ", "did you mean UTC?"),
        ("utc", "did you mean UTC?"),
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("America/NewYork", "did you mean America/New_York?"),
        ("right/Europe/Berlin", "did you mean Europe/Berlin?"),
        ("posix/Asia/Tokyo", "did you mean Asia/Tokyo?"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("localtime", "such as Europe/Lisbon"),
        ("posixrules", "such as Europe/Lisbon"),
        ("Factory", "such as Europe/Lisbon"),
        ("+01:00", "such as Europe/Lisbon"),
        ("../etc/passwd", "such as Europe/Lisbon"),
        ("\0", "such as Europe/Lisbon"),
        ("tzdata.zi", ""),
        ("zone.tab", ""),
        ("Europe", ""),
        ("x" * 100, "such as Europe/Lisbon"),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_nearest_one(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone") as refused:
        zones.zone_of(name)
    assert hint in str(refused.value)
    with pytest.raises(ValueError, match=r"time_zone: .* is not a time zone"):
        headers(target="t", repeat="cron 0 9 * * *", time_zone=name)
