"""Rules of links: claimed, claimed anew, released, and forgotten with what stands beside them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import rule

from fairlead.fleet import schema
from fairlead.fleet.directory_replies import Claimed
from fairlead.shards import agent_shard
from fairlead.store.reply import integer

from support.fleet.history_outcomes import Outcomes
from support.fleet.history_play import Session, again, agents, anyone, leases, seldom
from support.fleet.script_server import FAR_MS


class Links(Outcomes):
    """Agents come and go, at several nodes and in several lives."""

    @rule(agent=agents, boot=st.sampled_from("xxxy"), lease=leases, deliver=st.booleans(), again=again)
    def connect(self, agent: str, boot: str, lease: str, deliver: bool, again: bool) -> None:
        """A link, with all that a node does before and behind its welcome. Each start has a memory of its own."""
        self._connect(agent, boot, lease, again)
        if deliver:
            self._deliver(self.agent(agent), again)

    @rule(agent=agents, times=st.integers(2, 7))
    def crash(self, agent: str, times: int) -> None:
        """An agent that dies of what it is sent, each time."""
        for n in range(times):
            self._connect(agent, f"crash {n % 2}", "n1#a", False)
            self._deliver(self.agent(agent), False)

    def _connect(self, agent: str, boot: str, lease: str, again: bool) -> None:
        name = self.agent(agent)
        boot = f"{name}-{boot}"
        conn = 1 + sum(session.boot == boot for session in self.sessions)
        session = Session(name, boot, f"memory|of {boot}", conn, f"s{next(self.serial)}", lease)
        self.sessions.append(session)
        self.repeatedly(again, lambda: self._claim(session, False, None))
        for command in sorted(self.model.open_of(name)):
            self._fence(session, command, again, deliver=False)

    @rule(nth=anyone, own=st.booleans(), late=seldom, ahead=seldom, again=again)
    def claim(self, nth: int, own: bool, late: bool, ahead: bool, again: bool) -> None:
        """By a link that may have been overtaken; or, with its `own` generation, by a node that doubts its rows, which
        may be of a time before Redis's clock was put back."""
        session = self.session(nth)
        own_gen = session.gen + (FAR_MS if ahead else 0) if own else None
        self.repeatedly(again, lambda: self._claim(session, late, own_gen))

    def _claim(self, session: Session, late: bool, own_gen: int | None) -> None:
        s, before = session, self.model.agent(session.agent).gen
        facts = {"conn": str(s.conn)}
        link = s.agent, s.lease, s.boot, s.conn, s.sid
        packed, valid = msgspec.json.encode(facts), self.valid(late)
        found = self.server.call(lambda: self.directory.claim(*link, packed, valid, own_gen=own_gen, journal=s.memory))
        now = found.now if isinstance(found, Claimed) else 0
        expected = self.model.claim(*link, facts, own_gen, s.memory, late=late, now=now)
        if isinstance(found, Claimed):
            assert found.gen >= max(before, own_gen or 0)
            assert own_gen is not None or found.gen > before
            assert found.now >= self.now
            found = replace(found, open=sorted(found.open))
            session.gen = found.gen
            assert self._in_index(session.agent)
        assert found == expected

    @rule(nth=anyone, close=st.sampled_from((1000, 4000)), drained=st.booleans(), again=again)
    def release(self, nth: int, close: int, drained: bool, again: bool) -> None:
        session = self.session(nth)

        def call() -> None:
            ending = session.agent, session.sid, close, drained, f"why {close}"
            assert self.server.call(lambda: self.directory.release(*ending)) == self.model.release(*ending)

        self.repeatedly(again, call)

    @rule(
        agent=agents, lease=leases, how=st.sampled_from(("label", "failure", "moved", "seen lately", "absent", "lost"))
    )
    def forget_or_note(self, agent: str, lease: str, how: str) -> None:
        """What happens to a row beside its claims."""
        name = self.agent(agent)
        row = self.model.agents.get(name)
        if how == "label":
            labels = self.server.call(lambda: self.directory.label(name, {"lease": lease, "other": None}))
            if row is not None:
                row.labels = {"lease": lease}
            assert labels == (row.labels if row is not None else None)
        elif how == "failure":
            valid, failure = self.valid(False), f"trouble with {lease}"
            opened = self.server.call(lambda: self.directory.dispatch(name, "other", self.now + FAR_MS, valid))
            assert (opened is None) == (row is None)
            settled = self.server.call(lambda: self.directory.remove_open_each([(name, "other", failure)]))
            assert settled == [row.lease if row is not None else ""]
            again = self.server.call(lambda: self.directory.remove_open_each([(name, "other", "it is reported once")]))
            assert again == settled
            if row is not None:
                row.last_failure = failure
        elif how == "moved":
            sid = row.sid if row is not None and lease == row.lease else f"another at {lease}"
            noted = self.server.call(lambda: self.directory.mark_moved(name, sid))
            assert noted == (row is not None and row.sid == sid)
            if row is not None and noted:
                row.moved = integer(self.server.submit("HGET", schema.agent_key(name), "moved"))
                assert self.now <= row.moved
        elif how == "lost":  # by a Redis that was killed, with what was open
            self.server.submit("DEL", schema.agent_key(name), schema.open_key(name))
            self.model.agents.pop(name, None)
            self.model.open_of(name).clear()
        else:  # the sweep looks, having judged this lease dead
            before = self.now + (-FAR_MS if how == "seen lately" else FAR_MS)
            judged = row.lease if row is not None and how == "seen lately" else lease
            expected = self.model.forget(name, judged, long_ago=before > self.now)
            assert self.server.run(self.directory.forget(name, before, judged)) == expected
            assert not (expected and self._in_index(name))

    def _in_index(self, agent: str) -> bool:
        return self.server.submit("ZSCORE", schema.index_key(agent_shard(agent)), agent) is not None
