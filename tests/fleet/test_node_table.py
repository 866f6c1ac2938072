"""The presence of agents and how their links ended, derived from the rows of nodes, for any combination of leases,
processes and absences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.node_table import ALIVE_MS, AWAY_MS, GREATEST, NodeRow, NodeTable, Presence
from fairlead.fleet.schema import AgentRow

NOW = 1_700_000_000_000
ages = st.sampled_from((0, 1, ALIVE_MS, ALIVE_MS + 1, AWAY_MS, AWAY_MS + 1, 10 * AWAY_MS)) | st.integers(0, 3 * AWAY_MS)
"""How long ago something was, with the edges of both limits."""
epochs = st.sampled_from(("a", "b"))


@st.composite
def nodes(draw: st.DrawFn) -> NodeRow:
    at = NOW - draw(ages)
    return NodeRow("n1", draw(epochs), at, at - draw(ages), "ready", 1, 10, 0, "1", 0, 0, 0.0)


@st.composite
def agents(draw: st.DrawFn, *, linked: bool | None = None) -> AgentRow:
    lease = f"n1#{draw(epochs)}" if (draw(st.booleans()) if linked is None else linked) else ""
    seen = NOW - draw(ages)
    return AgentRow("agent", lease, NOW, "boot", 1, "sid", seen, seen, 1006, draw(st.booleans()))


numbers = st.sampled_from(
    (b"nan", b"inf", b"-inf", b"1e400", b"-1", b"9" * 400, b"9" * 5000, b"", b"x", b"\xff", b"0,1")
)
counts = st.sampled_from(("at", "began", "links", "capacity", "in_flight", "refused", "left", "moved", "ended"))
field_names = counts | st.sampled_from(("lag_ms", "spare_accept_rate", "cpu", "memory", "overheads", "process"))


@given(st.dictionaries(field_names.map(str.encode), numbers | st.binary(max_size=20), max_size=4))
def test_a_row_that_is_read_has_only_numbers_that_can_be_added_up(row: dict[bytes, bytes]) -> None:
    try:
        found = NodeRow.parse("n", row)
    except ValueError:
        return
    measured = (found.at, found.links, found.lag_ms, found.cpu, found.memory, found.spare_accept_rate, found.left)
    counted = () if found.traffic is None else (found.traffic.ended, *found.traffic.overheads)
    assert all(0 <= number <= GREATEST for number in (*measured, *counted))


def table(node: NodeRow | None, back: int = 0) -> NodeTable:
    return NodeTable({} if node is None else {node.node: node}, back)


@given(st.none() | nodes(), agents(linked=True), ages)
def test_an_agent_is_online_while_its_lease_belongs_to_a_live_process(
    node: NodeRow | None, agent: AgentRow, back: int
) -> None:
    presence, since, why = table(node, NOW - back).presence(agent, NOW)
    lives = node is not None and agent.lease == f"n1#{node.epoch}" and NOW - node.at <= ALIVE_MS
    assert (presence is Presence.ONLINE) == lives
    if lives:
        assert (since, why) == (agent.up, "linked to n1")
    else:
        assert why == "its node n1 is gone"


@given(st.none() | nodes(), agents(linked=False), ages)
def test_without_a_lease_absence_counts_from_the_end_of_the_link(
    node: NodeRow | None, agent: AgentRow, back: int
) -> None:
    """Neither the nodes nor how long this node has known them matter."""
    presence, since, why = table(node, NOW - back).presence(agent, NOW)
    assert presence is (Presence.AWAY if NOW - agent.seen <= AWAY_MS else Presence.OFFLINE)
    assert since == agent.seen
    assert why == ("it moves to another node" if agent.drained else "its link closed with 1006")


@given(st.none() | nodes(), agents(linked=True), ages)
def test_with_a_dead_lease_absence_counts_from_the_last_heartbeat_of_its_node(
    node: NodeRow | None, agent: AgentRow, back: int
) -> None:
    presence, since, _ = table(node, NOW - back).presence(agent, NOW)
    if presence is Presence.ONLINE:
        return
    if node is None:
        sign = 0
    elif node.lease == agent.lease:
        sign = node.at
    else:
        sign = node.began  # the life of the lease had ended by then
    assert since == max(sign, agent.seen)
    assert (presence is Presence.AWAY) == (NOW - since <= AWAY_MS or back <= AWAY_MS)


@given(st.none() | nodes(), agents(), ages, st.integers(0, 2 * AWAY_MS))
def test_an_offline_agent_stays_offline_until_its_row_changes(
    node: NodeRow | None, agent: AgentRow, back: int, later: int
) -> None:
    """Time alone takes an agent from online to away and on to offline, never back."""
    order = [Presence.ONLINE, Presence.AWAY, Presence.OFFLINE]
    known = table(node, NOW - back)
    now, then = (order.index(known.presence(agent, at)[0]) for at in (NOW, NOW + later))
    assert now <= then


@given(nodes(), agents(linked=True), st.integers(AWAY_MS + 1, 10 * AWAY_MS))
def test_a_returning_node_reports_no_agent_of_an_unknown_node_as_offline(
    node: NodeRow, agent: AgentRow, absent: int
) -> None:
    agent = agent._replace(seen=NOW - absent, up=NOW - absent)
    assert table(None, back=NOW).presence(agent, NOW)[0] is Presence.AWAY
    assert table(None, back=0).presence(agent, NOW)[0] is Presence.OFFLINE


@given(nodes(), epochs, ages)
def test_a_lease_is_held_by_the_current_process_only(node: NodeRow, epoch: str, later: int) -> None:
    known, lease = table(node), f"n1#{epoch}"
    assert known.holds(lease, node.at + later) == (epoch == node.epoch and later <= ALIVE_MS)
    assert not known.holds("", node.at)
    assert not known.holds("n2#a", node.at)
    assert known.last_sign("n2#a") == 0
    assert known.last_sign(lease) == (node.at if epoch == node.epoch else node.began)


@given(st.none() | nodes(), agents(), epochs, st.booleans())
def test_an_end_that_nobody_recorded_is_that_of_a_node_that_died_or_has_not_told_yet(
    node: NodeRow | None, agent: AgentRow, epoch: str, overtaken: bool
) -> None:
    agent = agent._replace(unrecorded=f"n1#{epoch} sid" if overtaken else "")
    known = table(node)
    end = known.unrecorded_end(agent, NOW)
    if agent.lease and known.presence(agent, NOW)[0] is not Presence.ONLINE:
        lease = agent.lease  # this link ended, and not only the one before it
        assert end is not None
        assert not end.alive
    elif overtaken:
        lease = f"n1#{epoch}"
        assert end is not None
        assert end.alive == known.holds(lease, NOW)
        assert end.before
    else:
        assert end is None
        return
    assert end.node == "n1"
    if node is not None and node.lease == lease:
        assert end.heartbeat == node.at
    else:
        assert end.heartbeat == 0, "the heartbeats of another life say nothing of this one"
