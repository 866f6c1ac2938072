"""Rules of what flows: input given and consumed, results read and followed."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fairlead.fleet.command_record import OutOfRange
from fairlead.store.reply import integer

from support.fleet.history_outcomes import Outcomes
from support.fleet.history_play import again, anyone, inputs, living, seldom, shifts


class Streams(Outcomes):
    """Callers write and read, at any place of the stream."""

    @rule(nth=living, shift=shifts, sizes=inputs, end=seldom, again=again)
    def give(self, nth: int, shift: int, sizes: list[int], end: bool, again: bool) -> None:
        command = self.command(nth)
        agent, first = self.agent_of(command), max(0, self._given(command) + shift)
        chunks = [(f"{next(self.serial)}".encode().ljust(size, b".")[:size], False) for size in sizes]
        if end:
            chunks[-1] = b"", True
        for n, (payload, last) in enumerate(chunks, first):

            def call(n: int = n, payload: bytes = payload, last: bool = last) -> None:
                stored = self.server.call(lambda: self.records.add_input(command, agent, n, payload, last))
                assert stored == self.model.add_input(command, agent, n, payload, last)

            self.repeatedly(again, call)

    @rule(nth=living, shift=shifts, again=again)
    def consume(self, nth: int, shift: int, again: bool) -> None:
        command = self.command(nth)
        found, n = self.model.commands.get(command), max(0, self._given(command) + shift)

        def call() -> None:
            made_room = self.model.consume_input(command, n)
            left = integer(self.server.call(lambda: self.records.consume_input(command, n)))
            if made_room and found is not None:
                assert left == found.waiting

        self.repeatedly(again, call)

    def _given(self, command: str) -> int:
        found = self.model.commands.get(command)
        return len(found.given) if found is not None else 0

    # -- readers -----------------------------------------------------------------------------------

    @rule(nth=anyone, offset=st.integers(0, 6), size=st.sampled_from((0, 1, 40, 1000)))
    def read(self, nth: int, offset: int, size: int) -> None:
        self._read(self.command(nth), offset, size, 0)

    @rule(nth=anyone, ahead=st.integers(0, 4), again=again)
    def read_on(self, nth: int, ahead: int, again: bool) -> None:
        """A reader that has all but the last `ahead`."""
        command = self.command(nth)
        found = self.model.commands.get(command)
        offset = max(0, len(found.stored) - ahead) if found is not None else 0

        def call() -> None:
            self.model.read_behind(command, offset)
            self._read(command, offset, 1000, offset)

        self.repeatedly(again, call)

    def _read(self, command: str, offset: int, size: int, behind: int) -> None:
        found = self.model.commands.get(command)
        page = self.server.call(lambda: self.records.read(command, offset, size, "", behind))
        assert (page is None) == (found is None)
        if page is None or found is None:
            return
        if isinstance(page, OutOfRange):
            if page.trimmed:
                assert offset < page.edge <= found.behind
                return
            assert (page.edge, page.dropped_at) == (len(found.stored), 0)
            assert offset > page.edge
            assert (page.ended is not None) == found.state.over
            return
        assert offset <= len(found.stored)
        first = max(offset, found.void)
        wanted = found.stored[first:]
        got = [(result.n, result.kind, result.payload) for result in page.results]
        assert [result.offset for result in page.results] == list(range(first, first + len(got)))
        assert {result.agent for result in page.results} <= {found.record.agent}
        assert got == wanted[: len(got)]
        assert (page.seq, page.held) == (len(found.stored), found.held if found.window else -1)
        if len(got) < len(wanted):
            assert sum(len(payload) for _, _, payload in got) >= size
        assert (page.ended is not None) == (found.state.over and len(got) == len(wanted))

    @rule(nth=anyone, first=st.integers(0, 20), count=st.sampled_from((1, 2, 17)), again=again)
    def follow(self, nth: int, first: int, count: int, again: bool) -> None:
        command = self.command(nth)
        for name in (f"f{first + n}#x" for n in range(count)):

            def call(name: str = name) -> None:
                self.model.follow(command, name)
                self.server.call(lambda: self.records.read(command, 0, 1, name))

            self.repeatedly(again, call)
