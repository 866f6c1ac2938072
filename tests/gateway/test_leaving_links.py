"""The links whose agents were told to move: which of them are closed, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.hub.hub import Hub
from fairlead.hub.totals import Totals
from fairlead.routing.moves.leaving_links import LATE, LeavingLinks
from fairlead.wire.close_codes import CloseCode

from support.hub.linked_session import greeted, linked

GRACE = 10.0


@given(st.lists(st.floats(0.01, 0.5), min_size=1, max_size=80), st.floats(0, 1000), st.data())
def test_links_are_closed_as_far_apart_as_their_slots_however_long_the_process_was_stopped(
    gaps: list[float], stopped: float, data: st.DataObject
) -> None:
    """The closes of `LATE` seconds may fall together."""
    leaving, now, step = LeavingLinks(0.0), 0.0, 0.05
    slot = 0.0
    slots: dict[str, float] = {}
    for i, gap in enumerate(gaps):
        slot += gap
        slots[f"agent-{i}"] = slot
        leaving.add(linked(Totals(), f"agent-{i}")[0], slot, now)
    stop_at = data.draw(st.floats(0, slot + GRACE))
    closes: list[tuple[float, str]] = []
    while leaving:
        now += step
        if now - step <= stop_at < now:
            now += stopped
        closes += [(now, session.agent) for session in leaving.take_late(GRACE, now)]
    assert [agent for _, agent in closes] == list(slots)
    for at, agent in closes:
        assert at >= slots[agent] + GRACE - 1e-6
    for i, (early, first) in enumerate(closes):
        for late, last in closes[i:]:
            assert slots[last] - slots[first] <= late - early + LATE + step + 1e-6


def test_links_without_a_welcome_go_at_their_slots() -> None:
    leaving = LeavingLinks(0.0)
    early, _ = greeted(Totals(), "early")
    ready, _ = linked(Totals(), "ready")
    leaving.add(early, 0.5, 0.0)
    leaving.add(ready, 0.5, 0.0)
    assert list(leaving.take_late(GRACE, 0.4)) == []
    assert list(leaving.take_late(GRACE, 0.6)) == [early]
    assert len(leaving) == 1


def test_link_that_is_being_closed_is_present_until_its_connection_is_over() -> None:
    leaving, hub = LeavingLinks(0.0), Hub()
    sessions = [linked(hub.totals, f"agent-{i}")[0] for i in range(3)]
    for session in sessions:
        hub.add(session)
    moved, here, other = sessions
    for session in (moved, here):
        leaving.add(session, 0.0, 0.0)
    assert leaving.present(hub) == 2
    for now in range(1, 12):
        for late in leaving.take_late(GRACE, float(now)):
            late.close(CloseCode.RESTART, "late")
    assert (len(leaving), leaving.present(hub), len(hub)) == (0, 2, 3), "the agents do not answer"
    hub.remove(moved)
    assert (leaving.present(hub), len(hub)) == (1, 2)
    hub.remove(here)
    hub.add(linked(hub.totals, here.agent)[0])
    assert (leaving.present(hub), len(hub)) == (0, 2), "an agent that has come back here is not leaving"
    assert hub.get(other.agent) is other
