"""The members of a cluster as the leader of the voters knows them, and the value of the register:
roles, open requests, and the ids of those answered last.

The leader keeps the members in memory, not in the register. Each reports to the leader it knows,
several times in a session timeout; a member that sends no report for that time is gone, and this
leader does not count its incarnation again (it knows the ENDED_MAX that ended last). A new leader
begins without members; they report to it with their registration numbers, so that their order stays
the same. `Sessions` has no clock: time is an argument, in ms of a clock that never goes back."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from chronos.core.cluster.roles import Member, Request, Roles, same_directory

ENDED_MAX = 1_000
"""Lives that are remembered as ended, for the answer to their late reports."""

ANSWERED_MAX = 200
"""Requests that are remembered as answered, so that one that is sent twice is not done twice."""

RegistrationNumber = tuple[int, int]
"""Term and number of a registration: the member with the least number is the controller."""


class Content(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of the register."""

    roles: Roles | None = None
    version: int = 0
    """Number of publications of the roles."""
    requests: tuple[tuple[str, Request], ...] = ()
    """Requests without an answer, oldest first, each with its id."""
    answered: tuple[str, ...] = ()
    """Ids of the requests answered last."""

    def asked(self, request_id: str, request: Request) -> Content | None:
        """Return the content with a request; None if it is there, or was answered."""
        if request_id in self.answered or any(request_id == known for known, _ in self.requests):
            return None
        return Content(
            roles=self.roles,
            version=self.version,
            requests=(*self.requests, (request_id, request)),
            answered=self.answered,
        )

    def published(self, roles: Roles, answered: tuple[str, ...]) -> Content:
        """Return the content with other roles, which answer these requests."""
        return Content(
            roles=roles,
            version=self.version + 1,
            requests=tuple(each for each in self.requests if each[0] not in answered),
            answered=(*self.answered, *answered)[-ANSWERED_MAX:],
        )


class VoterSession(Struct, kw_only=True):
    """One member."""

    incarnation: str
    """Random for each registration."""
    registration_number: RegistrationNumber
    member: Member
    heard_ms: int
    since_ms: int
    """When the leader received the first message of this incarnation (epoch ms)."""
    joined: bool
    """True if it registered with this leader, not with an earlier one."""


class Sessions:
    """The members, while this node leads."""

    def __init__(self, timeout_ms: int, voters: Collection[str]) -> None:
        self.revision: RegistrationNumber = (0, 0)
        """Grows with every change of `members`; the first number is the term."""
        self._timeout_ms = timeout_ms
        self._voters = frozenset(voters)
        self._sessions: dict[str, VoterSession] = {}
        self._ended: dict[str, None] = {}
        self._began_ms = 0
        self._ticked_ms = 0
        self._registrations = 0
        self._previous = ""
        self._settled = False

    def begin(self, term: int, now_ms: int, previous: str) -> None:
        """Begin without members, because this node now leads. `previous`: the leader before; it is
        not waited for.

        If this node has led in this term before, revisions and registration numbers go on, so that
        no number is given twice."""
        if self.revision[0] == term:
            self._changed()
        else:
            self.revision, self._registrations = (term, 0), 0
        self._sessions = {}
        self._began_ms = self._ticked_ms = now_ms
        self._previous, self._settled = previous, False

    # --- what is known

    @property
    def members(self) -> Mapping[str, Member]:
        """The members by name."""
        return {node: session.member for node, session in sorted(self._sessions.items())}

    @property
    def since_ms(self) -> Mapping[str, int]:
        """Member -> when the leader received its first message (epoch ms)."""
        return {node: session.since_ms for node, session in sorted(self._sessions.items())}

    @property
    def controller(self) -> str:
        """The member that registered first; empty if there is none."""
        return min(
            self._sessions, key=lambda node: self._sessions[node].registration_number, default=""
        )

    def incarnation(self, node: str) -> str:
        """The incarnation that counts of a node; empty if it is not a member."""
        session = self._sessions.get(node)
        return "" if session is None else session.incarnation

    def registration_number(self, node: str) -> RegistrationNumber:
        """The registration number of a member; (0, 0) if it is none."""
        session = self._sessions.get(node)
        return (0, 0) if session is None else session.registration_number

    def is_ended(self, incarnation: str) -> bool:
        """Return whether the session of this incarnation has ended: it never counts again."""
        return incarnation in self._ended

    def settled(self, roles: Roles | None, now_ms: int) -> bool:
        """Return whether the members are all known: a session timeout has passed, or all nodes of
        the roles have reported.

        Without roles all voters have to: most of them may have lost their disks, and another one
        may be a master that does not know this leader yet."""
        if not self._settled:
            nodes = self._voters if roles is None else roles.nodes - roles.away.keys()
            self._settled = (
                now_ms - self._began_ms >= self._timeout_ms
                or nodes - {self._previous} <= self._sessions.keys()
            )
        return self._settled

    # --- what happens

    def tick(self, now_ms: int) -> None:
        """End the sessions of members that sent no report for a session timeout; time in which this
        process stood still does not count."""
        stood_still_ms = now_ms - self._ticked_ms
        if stood_still_ms > self._timeout_ms // 3:
            for session in self._sessions.values():
                session.heard_ms += stood_still_ms
        self._ticked_ms = now_ms
        for node, session in list(self._sessions.items()):
            if now_ms - session.heard_ms > self._timeout_ms:
                self._end(node)

    def join(self, incarnation: str, member: Member, now_ms: int, wall_ms: int) -> Member | None:
        """Register an incarnation that has not ended; return the other member that has the name, in
        which case nothing changes."""
        assert not self.is_ended(incarnation)
        known = self._sessions.get(member.node)
        if known is not None and not same_directory(known.member, member):
            return known.member
        if known is None or known.incarnation != incarnation:
            self._registrations += 1
            self._take(
                VoterSession(
                    incarnation=incarnation,
                    registration_number=(self.revision[0], self._registrations),
                    member=member,
                    heard_ms=now_ms,
                    since_ms=wall_ms,
                    joined=True,
                )
            )
        else:
            self._hear(known, member, now_ms)
        return None

    def report(
        self,
        incarnation: str,
        registration_number: RegistrationNumber,
        member: Member,
        now_ms: int,
        wall_ms: int,
    ) -> bool:
        """Note a report; return whether the incarnation counts. One that another leader registered
        keeps its registration number."""
        known = self._sessions.get(member.node)
        if self.is_ended(incarnation):
            return False
        if known is not None and known.incarnation == incarnation:
            self._hear(known, member, now_ms)
        elif (
            known is None
            or registration_number > known.registration_number
            or self._had_the_name(member, known, now_ms)
        ):
            self._take(
                VoterSession(
                    incarnation=incarnation,
                    registration_number=registration_number,
                    member=member,
                    heard_ms=now_ms,
                    since_ms=wall_ms,
                    joined=False,
                )
            )
        else:
            return False
        return True

    def _had_the_name(self, member: Member, known: VoterSession, now_ms: int) -> bool:
        """Return whether a member had its name before another data directory took it.

        For a session timeout a new leader does not know all members: a node that joins in that time
        may have the name of one of them."""
        is_early = now_ms - self._began_ms < self._timeout_ms
        return is_early and known.joined and not same_directory(known.member, member)

    def leave(self, incarnation: str) -> None:
        """End the session of a member that leaves."""
        node = next(
            (
                node
                for node, session in self._sessions.items()
                if session.incarnation == incarnation
            ),
            None,
        )
        if node is not None:
            self._end(node)

    def _hear(self, session: VoterSession, member: Member, now_ms: int) -> None:
        session.heard_ms = now_ms
        if session.member != member:
            session.member = member
            self._changed()

    def _take(self, session: VoterSession) -> None:
        node = session.member.node
        if node in self._sessions:
            self._end(node)
        self._sessions[node] = session
        self._changed()

    def _end(self, node: str) -> None:
        self._ended[self._sessions.pop(node).incarnation] = None
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        self._changed()

    def _changed(self) -> None:
        self.revision = (self.revision[0], self.revision[1] + 1)
