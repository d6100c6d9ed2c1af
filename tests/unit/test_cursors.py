"""Page keys: sealed, bound, and readable by every node of a cluster."""

from types import SimpleNamespace
from typing import Any

import pytest

from chronos.admin.http.context import Call
from chronos.admin.http.encoding import Cursors
from chronos.admin.http.problems import ProblemError
from chronos.admin.http.schemas import DeadLetterQuery, PageQuery
from chronos.admin.http.tokens import Sender
from chronos.config import Config, load
from chronos.core.cluster.roles import Member
from chronos.core.keys import OFFSET_MAX

NUMBERS = [1_893_456_000_000, 3, OFFSET_MAX]
SHOP = Sender(name="shop", roles=frozenset({"read"}))
OTHER = Sender(name="other", roles=frozenset({"read"}))
QUERY = PageQuery(target="orders", limit=5)


def config(node: str, *more: str) -> Config:
    """The configuration of one node."""
    return load(None, {}, [f"node.id={node}", *more])


RAFT = (
    "coordinator.kind=raft",
    "coordinator.secret=a-secret-of-the-cluster-for-all-nodes",
    "log.kind=kafka",
    "coordinator.raft.peers=[a=h:1,b=h:2,c=h:3]",
    "log.kafka.bootstrap_servers=h:9092",
)


def call(sender: Sender, path: str = "/v1/messages") -> Call:
    """A request of the sender."""
    request: Any = SimpleNamespace(path=path)
    hold: Any = None
    return Call(request, None, b"", sender, hold)


def members(**tokens: str) -> dict[str, Member]:
    """Nodes with these tokens."""
    return {
        name: Member(
            node=name, instance=name, address="http://a:1", version="1", started_ms=0, token=token
        )
        for name, token in tokens.items()
    }


def refuses(cursors: Cursors, key: str, asked: Call, query: Any = QUERY) -> bool:
    """Return whether the key is refused with the advice to begin again."""
    with pytest.raises(ProblemError, match="begin again") as refused:
        cursors.open(asked, query, key)
    return refused.value.status == 400


def test_a_key_is_read_with_the_token_and_the_conditions_it_was_made_for():
    """The number of messages on a page may differ."""
    cursors = Cursors(config("a"), "token-a", dict)
    key = cursors.seal(call(SHOP), QUERY, NUMBERS)
    assert cursors.open(call(SHOP), PageQuery(target="orders", limit=99, after=key), key) == NUMBERS
    assert refuses(cursors, key, call(OTHER))
    assert refuses(cursors, key, call(SHOP), PageQuery(target="orders.x"))
    assert refuses(cursors, key, call(SHOP), PageQuery(target="orders", due_from=0))
    assert refuses(cursors, key, call(SHOP, "/v1/dead-letters"), DeadLetterQuery(target="orders"))


def test_no_byte_of_a_key_may_be_changed():
    """Nor any be missing or added."""
    cursors = Cursors(config("a"), "token-a", dict)
    key = cursors.seal(call(SHOP), QUERY, NUMBERS)
    for at in range(len(key) - 1):
        assert refuses(
            cursors, key[:at] + ("A" if key[at] != "A" else "B") + key[at + 1 :], call(SHOP)
        )
        assert refuses(cursors, key[:at], call(SHOP))
    assert refuses(cursors, key + "AAAA", call(SHOP))
    assert refuses(cursors, "", call(SHOP))
    assert refuses(cursors, "é", call(SHOP))


def test_a_key_shows_nothing_of_the_position():
    """All have the same length, and neighbours nothing in common."""
    cursors = Cursors(config("a"), "token-a", dict)
    keys = [
        cursors.seal(call(SHOP), QUERY, [due, 0, offset])
        for due, offset in ((0, 0), (0, 1), (10**15, OFFSET_MAX))
    ]
    assert len({len(key) for key in keys}) == 1
    assert len({key[-20:] for key in keys}) == 3


def test_the_nodes_of_a_cluster_read_each_other_by_the_tokens_that_they_gave_the_coordinator():
    """Until the node that made the key is restarted."""
    known = members(a="token-a", b="token-b")
    first, second = (
        Cursors(config("a"), "token-a", lambda: known),
        Cursors(config("b"), "token-b", lambda: known),
    )
    key = first.seal(call(SHOP), QUERY, NUMBERS)
    assert second.open(call(SHOP), QUERY, key) == NUMBERS
    known = members(a="token-after-a-restart", b="token-b")
    assert refuses(second, key, call(SHOP))
    known = members(b="token-b")
    assert refuses(second, key, call(SHOP))
    known = members(a="", b="token-b")
    assert refuses(second, key, call(SHOP))


def test_with_a_secret_of_the_cluster_keys_outlive_the_nodes():
    """And clusters with different secrets do not read each other's."""
    first = Cursors(config("a", *RAFT), "token-a", dict)
    again = Cursors(config("b", *RAFT), "another", dict)
    key = first.seal(call(SHOP), QUERY, NUMBERS)
    assert again.open(call(SHOP), QUERY, key) == NUMBERS
    other = Cursors(
        config("b", *RAFT, "coordinator.secret=another-secret-of-another-cluster"), "token-b", dict
    )
    assert refuses(other, key, call(SHOP))
    assert refuses(Cursors(config("b", *RAFT, "cluster=other"), "token-b", dict), key, call(SHOP))
