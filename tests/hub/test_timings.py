"""The timestamps of a link's open commands: of none, of one, and of several at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.hub.link_telemetry import LinkTelemetry
from fairlead.telemetry.command_timing import CommandTiming

moves = st.lists(st.tuples(st.sampled_from(["start", "start", "stop"]), st.sampled_from("abc")), max_size=30)


@given(moves)
def test_each_open_command_has_its_own(moves: list[tuple[str, str]]) -> None:
    link = LinkTelemetry(None, None)  # type: ignore[arg-type]  # timestamps need no context
    known: dict[str, CommandTiming] = {}
    for move, command in moves:
        if move == "start":
            known[command] = CommandTiming(0, 1)
            link.start_timing(command, known[command])
        elif move == "stop":
            assert link.stop_timing(command) is known.pop(command, None)
        assert link.timing_of(command) is known.get(command)
        assert (link.timings is None) == (not known)
    assert link.stop_timings() == known
    assert link.timings is None
    assert link.stop_timings() == {}
