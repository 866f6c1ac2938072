"""Links end with what has opened them, and their agents move before that. Time is the test's."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.errors import FairleadError, Unauthorized, Unavailable
from fairlead.hub.session import Session
from fairlead.hub.totals import Totals
from fairlead.identity.authenticated_agent import AuthenticatedAgent
from fairlead.oidc.issuers_file import TrustedIssuer
from fairlead.oidc.jwt_verifier import UnknownKey
from fairlead.routing.moves.expiring_links import GRACE, ExpiringLinks
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Drain

from support.hub.linked_session import AGENT, Wire, linked

SOURCE = ("https://issuer", "key-1")


@dataclass
class Fleet:
    now: float = 1_000.0
    refusals: dict[tuple[str, str], FairleadError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.links = ExpiringLinks(lambda: int(self.now * 1000), lambda low, high: high)
        self.links.refusal = lambda url, key: self.refusals.get((url, key))

    def add(self, expires: float, source: tuple[str, str] | None = SOURCE) -> tuple[Session, Wire]:
        session, wire = linked(Totals())
        wire.sent.clear()
        self.links.add(session, AuthenticatedAgent("a", "t", 0, int(expires), "JWT", source=source))
        return session, wire

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.links.step()


def drains(wire: Wire) -> int:
    return sum(isinstance(AGENT.decode(one), Drain) for one in wire.sent)


def test_an_agent_is_told_once_before_the_end_and_closed_after_it() -> None:
    fleet = Fleet()
    _, wire = fleet.add(1_600)
    fleet.after(539)
    assert (drains(wire), wire.closed) == (0, [])
    for _ in range(3):
        fleet.after(2)
    assert (drains(wire), wire.closed) == (1, [])
    fleet.after(60 + GRACE - 10)
    assert wire.closed == []
    fleet.after(20)
    assert wire.closed == [CloseCode.EXPIRED]
    assert (len(fleet.links), fleet.links.moved, fleet.links.closed) == (0, 1, 1)


def test_a_link_whose_end_is_near_is_not_told_to_move_again_and_again() -> None:
    """Its agent has come back with what it has, and has nothing newer."""
    fleet = Fleet()
    _, wire = fleet.add(1_015)
    for _ in range(40):
        fleet.after(2)
    assert (drains(wire), wire.closed) == (0, [CloseCode.EXPIRED])


def test_a_link_that_is_over_is_forgotten() -> None:
    fleet = Fleet()
    session, wire = fleet.add(1_100)
    fleet.links.discard(session)
    fleet.after(10_000)
    assert (len(fleet.links), wire.closed) == (0, [])


def test_a_refused_key_or_issuer_closes_its_links_at_once_and_no_others() -> None:
    fleet = Fleet()
    _, refused = fleet.add(9_999)
    _, other = fleet.add(9_999, ("https://issuer", "key-2"))
    _, certified = fleet.add(9_999, None)
    fleet.refusals[SOURCE] = Unauthorized("refused")
    fleet.after(2)
    assert (refused.closed, other.closed, certified.closed) == ([CloseCode.EXPIRED], [], [])


def test_a_withdrawn_key_leaves_time_to_move() -> None:
    fleet = Fleet()
    _, wire = fleet.add(9_999)
    fleet.refusals[SOURCE] = UnknownKey(TrustedIssuer("x", "https://issuer", "a"), "key-1")
    fleet.after(2)
    assert (drains(wire), wire.closed) == (1, [])
    fleet.after(GRACE - 5)
    assert (drains(wire), wire.closed) == (1, [])
    fleet.after(10)
    assert wire.closed == [CloseCode.EXPIRED]


def test_an_issuer_that_is_away_closes_nothing() -> None:
    fleet = Fleet()
    _, wire = fleet.add(9_999)
    fleet.refusals[SOURCE] = Unavailable("away")
    fleet.after(7_200)
    assert (drains(wire), wire.closed) == (0, [])
