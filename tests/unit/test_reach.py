"""The reach of a sender: which targets, ids and messages are its own."""

import inspect
import re
from pathlib import Path

import pytest
from msgspec import NODEFAULT
from msgspec.structs import fields

from chronos import admin
from chronos.admin.cluster.peers import PeerClient
from chronos.admin.letters.recent import RecentRejections
from chronos.admin.letters.scan import Wanted
from chronos.admin.messages.listing import to_filter
from chronos.admin.messages.scheduling import Planner
from chronos.core.query.lookup import find
from chronos.core.reach import EVERYTHING, Reach, is_made
from tests.harness.table import table

OWN = Reach(targets=("mine", "mine.*"), ids=("mine-*",))


@table(
    ("message_id", "target", "is_own"),
    [
        (b"mine-1", "mine", True),
        (b"mine-1", "mine.x", True),
        (b"mine-1", "theirs", False),
        (b"theirs-1", "mine", False),
        (b"\xff", "mine", False),
        (b"0-1893456000000-17", "mine", True),
        (b"0-1893456000000-17", "theirs", False),
        (b"chronos.delay/3/1000/2", "mine", True),
        (b"", "", False),
    ],
)
def test_a_message_is_own_if_its_target_and_its_id_are(message_id, target, is_own):
    """An id that Chronos made belongs to whoever has the target."""
    assert OWN.admits(message_id, target) == is_own
    assert EVERYTHING.admits(message_id, target)


def test_a_client_gives_no_id_that_chronos_makes():
    """Otherwise it could take the id of a message of others."""
    assert is_made(b"0-1-2")
    assert OWN.admits_id(b"0-1-2")
    assert not OWN.admits_given_id(b"0-1-2")


def test_one_pattern_for_all_is_no_limit():
    """Of targets and ids, each for itself."""
    assert not Reach(targets=("a", "*"), ids=("*",)).is_limited
    assert Reach(targets=("a",)).is_limited
    assert Reach(ids=("a",)).is_limited


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (find, "reach"),
        (to_filter, "sender"),
        (RecentRejections.find, "reach"),
        (Planner.plan_body, "sender"),
        (PeerClient.ask, "reach"),
        (PeerClient.act, "reach"),
        (PeerClient.gather, "reach"),
        (PeerClient.ask_member, "reach"),
    ],
)
def test_no_caller_can_forget_the_reach(function, name):
    """What reads messages for a sender, or passes its request on, takes the reach as an argument
    without a default."""
    assert inspect.signature(function).parameters[name].default is inspect.Parameter.empty


def test_no_filter_of_a_request_is_without_a_reach():
    """Neither of pending messages nor of dead letters."""
    (reach,) = (field for field in fields(Wanted) if field.name == "reach")
    assert reach.default is NODEFAULT
    for path in Path(admin.__file__).parent.glob("*.py"):
        for found in re.finditer(r"\bFilter\(", path.read_text()):
            assert path.read_text()[found.end() :].lstrip().startswith("reach="), path
