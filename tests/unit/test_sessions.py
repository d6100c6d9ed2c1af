"""The members as a leader of the voters knows them: registrations, incarnations, names and silence;
and the content of the register."""

from __future__ import annotations

from msgspec.structs import replace

from chronos.core.cluster.raft.sessions import (
    ANSWERED_MAX,
    ENDED_MAX,
    Content,
    RegistrationNumber,
    Sessions,
)
from chronos.core.cluster.roles import Member, Request, Roles, ShardRoles
from tests.harness.zookeeper import member

TIMEOUT_MS = 1_200
TERM = 3
WALL_MS = 1_800_000_000_000


def leading(term: int = TERM, previous: str = "", voters: tuple[str, ...] = ()) -> Sessions:
    """The sessions of a node that leads since 0 ms."""
    found = Sessions(TIMEOUT_MS, voters)
    found.begin(term, 0, previous)
    return found


def join(
    sessions: Sessions, incarnation: str, now_ms: int = 0, *, who: Member | None = None
) -> Member | None:
    """Register an incarnation; by default of the node that is named like its first letter."""
    return sessions.join(incarnation, who or member(incarnation[0]), now_ms, WALL_MS + now_ms)


def report(
    sessions: Sessions,
    incarnation: str,
    registration_number: RegistrationNumber,
    now_ms: int = 0,
    *,
    who: Member | None = None,
) -> bool:
    """Report for an incarnation."""
    return sessions.report(
        incarnation, registration_number, who or member(incarnation[0]), now_ms, WALL_MS + now_ms
    )


def other(node: str) -> Member:
    """The same node from another data directory."""
    return member(node, instance="another")


# --- Registrations and silence --------------------------------------------------------------------


def test_the_member_that_registered_first_controls() -> None:
    """Numbers are given in the order of the registrations; a member that another leader registered
    keeps its earlier one."""
    found = leading()
    assert found.controller == ""
    join(found, "b")
    join(found, "a")
    assert (
        found.registration_number("b"),
        found.registration_number("a"),
        found.registration_number("c"),
    ) == (
        (TERM, 1),
        (TERM, 2),
        (0, 0),
    )
    assert found.controller == "b"
    assert report(found, "c", (TERM - 1, 9))
    assert (found.controller, found.registration_number("c")) == ("c", (TERM - 1, 9))
    found.leave("c")
    assert found.controller == "b"


def test_a_member_that_is_silent_for_the_timeout_is_gone_and_its_life_never_counts_again() -> None:
    found = leading()
    join(found, "a")
    for now_ms in range(0, TIMEOUT_MS + 1, 300):
        found.tick(now_ms)
        assert "a" in found.members
    found.tick(TIMEOUT_MS + 1)
    assert found.members == {}
    assert found.is_ended("a")
    assert not report(found, "a", (TERM, 1), TIMEOUT_MS + 2)
    assert found.incarnation("a") == ""


def test_reports_and_repeated_registrations_count_against_silence() -> None:
    """A node whose first answer was lost registers the same incarnation again, and is not silent
    meanwhile."""
    found = leading()
    for now_ms in range(0, 3 * TIMEOUT_MS, 300):
        join(found, "a", now_ms)
        assert join(found, "b", 0) is None if now_ms == 0 else report(found, "b", (TERM, 2), now_ms)
        found.tick(now_ms)
    assert set(found.members) == {"a", "b"}
    assert found.registration_number("a") == (TERM, 1)


def test_a_repeated_registration_brings_the_state_of_its_node() -> None:
    found = leading()
    join(found, "a")
    before = found.revision
    join(found, "a")
    assert found.revision == before
    join(found, "a", who=member("a", applied=7))
    assert found.members["a"] == member("a", applied=7)
    assert found.revision > before


def test_time_in_which_the_leader_stood_still_is_no_silence() -> None:
    found = leading()
    join(found, "a")
    found.tick(100)
    found.tick(100 + 50 * TIMEOUT_MS)
    assert "a" in found.members
    for now_ms in range(100, TIMEOUT_MS + 400, 100):
        found.tick(100 + 50 * TIMEOUT_MS + now_ms)
    assert found.members == {}


def test_every_change_of_the_members_has_a_greater_revision() -> None:
    """Also when a node leads twice in one term, after it lost the quorum in between: no
    registration number is given twice."""
    found = leading()
    revisions = [found.revision]
    join(found, "a")
    revisions.append(found.revision)
    report(found, "a", (TERM, 1), 1, who=member("a", applied=7))
    revisions.append(found.revision)
    found.begin(TERM, 10, "")
    revisions.append(found.revision)
    assert found.members == {}
    join(found, "b", 10)
    revisions.append(found.revision)
    assert found.registration_number("b") == (TERM, 2)
    found.leave("b")
    revisions.append(found.revision)
    found.begin(TERM + 1, 20, "")
    revisions.append(found.revision)
    assert sorted(set(revisions)) == revisions
    join(found, "c", 20)
    assert found.registration_number("c") == (TERM + 1, 1)


# --- Names ----------------------------------------------------------------------------------------


def test_a_restarted_node_takes_its_own_place_at_once() -> None:
    """Its former incarnation has ended: late messages of it change nothing."""
    found = leading()
    join(found, "a1")
    assert join(found, "a2") is None
    assert (found.incarnation("a"), found.registration_number("a")) == ("a2", (TERM, 2))
    assert found.is_ended("a1")
    assert not report(found, "a1", (TERM, 1))
    assert found.incarnation("a") == "a2"


def test_another_data_directory_is_refused_while_the_name_is_taken() -> None:
    found = leading()
    join(found, "a1")
    assert join(found, "a2", who=other("a")) == member("a")
    assert found.incarnation("a") == "a1"
    found.leave("a1")
    assert join(found, "a2", who=other("a")) is None
    assert found.incarnation("a") == "a2"


def test_a_copy_of_a_data_directory_is_refused_while_the_other_process_is_heard() -> None:
    found = leading()
    first, copy = (replace(member("a"), place=place) for place in ("one", "two"))
    join(found, "a1", who=first)
    assert join(found, "a2", TIMEOUT_MS, who=copy) == first
    assert join(found, "a3", who=replace(first, place="")) is None


def test_under_a_new_leader_the_later_one_of_two_lives_of_a_node_counts() -> None:
    """Whichever of them reports first: the earlier leader had registered the later one in place of
    the other."""
    for incarnations in (("a1", "a2"), ("a2", "a1")):
        found = leading()
        numbers = {"a1": (TERM - 1, 1), "a2": (TERM - 1, 4)}
        assert [report(found, each, numbers[each]) for each in incarnations] == [
            True,
            incarnations[1] == "a2",
        ]
        assert found.incarnation("a") == "a2"


def test_a_member_keeps_its_name_when_another_directory_came_first_to_a_new_leader() -> None:
    """The new leader cannot know the name yet; the member reports within the timeout."""
    found = leading()
    assert join(found, "a2", who=other("a")) is None
    assert report(found, "a1", (TERM - 1, 1), TIMEOUT_MS - 1)
    assert (found.incarnation("a"), found.registration_number("a")) == ("a1", (TERM - 1, 1))
    assert found.is_ended("a2")
    assert join(found, "a3", TIMEOUT_MS, who=other("a")) == member("a")


def test_a_member_that_is_silent_for_the_first_timeout_of_a_leader_has_lost_its_name() -> None:
    found = leading()
    join(found, "a2", who=other("a"))
    assert not report(found, "a1", (TERM - 1, 1), TIMEOUT_MS)
    assert found.incarnation("a") == "a2"


def test_a_restarted_node_is_not_replaced_by_its_former_life_under_a_new_leader() -> None:
    """The new process registered with the new leader, and a late report of the former one arrives
    there."""
    found = leading()
    join(found, "a2")
    assert not report(found, "a1", (TERM - 1, 1), 1)
    assert found.incarnation("a") == "a2"


def test_ended_lives_are_remembered_up_to_a_bound() -> None:
    found = leading()
    for number in range(ENDED_MAX + 2):
        join(found, f"a{number}")
    assert [found.is_ended(f"a{number}") for number in (0, 1, ENDED_MAX, ENDED_MAX + 1)] == [
        False,
        True,
        True,
        False,
    ]


# --- Settled --------------------------------------------------------------------------------------


def roles(*nodes: str, away: str = "") -> Roles:
    """Roles of one shard that these nodes hold."""
    return Roles(
        shards={0: ShardRoles(master=nodes[0], replicas=nodes, epoch=1)},
        away=dict.fromkeys(away, WALL_MS),
    )


def test_a_leader_knows_all_members_once_the_nodes_of_the_roles_have_reported() -> None:
    """The leader before it, which has stopped or failed, and nodes that are away are not waited
    for."""
    found = leading(previous="p")
    held = roles("a", "b", "p", "w", away="w")
    assert not found.settled(held, 0)
    report(found, "a", (TERM - 1, 1))
    assert not found.settled(held, 0)
    report(found, "b", (TERM - 1, 2))
    assert found.settled(held, 0)
    found.leave("b")
    assert found.settled(held, 0), "what is settled stays settled"


def test_a_leader_knows_all_members_after_a_timeout() -> None:
    found = leading()
    assert not found.settled(roles("a", "b"), TIMEOUT_MS - 1)
    assert found.settled(roles("a", "b"), TIMEOUT_MS)
    found.begin(TERM + 1, TIMEOUT_MS, "")
    assert not found.settled(roles("a", "b"), TIMEOUT_MS)


def test_without_roles_a_leader_waits_for_all_voters() -> None:
    """Others of them may have lost their disks, and one that has not may be a master."""
    found = leading(previous="p", voters=("a", "b", "p"))
    report(found, "a", (TERM - 1, 1))
    assert not found.settled(None, TIMEOUT_MS - 1)
    report(found, "b", (TERM - 1, 2))
    assert found.settled(None, TIMEOUT_MS - 1)
    found.begin(TERM + 1, TIMEOUT_MS, "")
    assert not found.settled(None, TIMEOUT_MS)
    assert found.settled(None, 2 * TIMEOUT_MS)


# --- The content of the register ------------------------------------------------------------------


def test_a_request_is_kept_until_it_is_answered_and_counts_once() -> None:
    drain, limit = Request(kind="drain", node="a"), Request(kind="limit", node="", pattern="x")
    asked = Content().asked("1", drain)
    assert asked is not None
    assert asked.asked("1", drain) is None
    both = asked.asked("2", limit)
    assert both is not None
    assert both.requests == (("1", drain), ("2", limit))
    answered = both.published(Roles(controller="a"), ("1",))
    assert (answered.requests, answered.version, answered.roles) == (
        (("2", limit),),
        1,
        Roles(controller="a"),
    )
    assert answered.asked("1", drain) is None
    for number in range(ANSWERED_MAX):
        answered = answered.published(replace(Roles(), controller="a"), (f"n{number}",))
    assert len(answered.answered) == ANSWERED_MAX
    assert answered.asked("1", drain) is not None
