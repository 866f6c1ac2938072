"""The built-in traces have the shape that they promise, and an owner's own is read as Prometheus wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fairlead.errors import ConfigError
from fairlead_operator.simulator.scenarios.trace_file import read_trace
from fairlead_operator.simulator.scenarios.traces import TRACES

HOUR = 3600
AGENTS = 10_000
SCENARIOS = {name: trace(AGENTS, 24 * HOUR) for name, trace in TRACES.items()}


@pytest.mark.parametrize("name", sorted(TRACES))
def test_a_trace_is_a_day_long_and_peaks_with_all_agents(name: str) -> None:
    scenario = SCENARIOS[name]
    assert (scenario.name, scenario.seconds, scenario.agents) == (name, 24 * HOUR, AGENTS)
    assert scenario.demand.min() == 4000
    assert scenario.demand[0] == scenario.demand[-1] == 4000
    assert name == "region" or int(scenario.demand.argmax()) == pytest.approx(12 * HOUR, abs=0.1 * HOUR)
    for length in (60, 601):
        assert TRACES[name](7, length).seconds == length


def test_the_wave_rises_until_noon_and_falls_after_it() -> None:
    change = np.diff(SCENARIOS["day"].demand)
    assert change[: 12 * HOUR].min() >= 0
    assert change[12 * HOUR :].max() <= 0
    assert np.abs(change).max() <= 1


def test_a_region_goes_at_once_and_returns_within_a_minute() -> None:
    demand = SCENARIOS["region"].demand
    noon = 12 * HOUR
    assert demand[noon - 1] == pytest.approx(AGENTS, rel=0.001)
    assert demand[noon : noon + 1200] == pytest.approx(0.7 * AGENTS, rel=0.01)
    assert demand[noon + 1230] == pytest.approx(0.85 * AGENTS, rel=0.01)
    assert demand[noon + 1260] == pytest.approx(AGENTS, rel=0.01)


def test_events_stand_where_they_are_said_to() -> None:
    assert SCENARIOS["rollout"].rollout_at == SCENARIOS["zone"].zone_down.begin == 12 * HOUR
    dead, stuck = SCENARIOS["dead-metric"].unreadable, SCENARIOS["stuck-pod"].stuck
    assert (dead.end - dead.begin, stuck.end - stuck.begin) == (HOUR, 2 * HOUR)
    rising = np.diff(SCENARIOS["day"].demand)
    assert rising[dead.begin : dead.end].sum() > 500, "pods would have to be added meanwhile"
    assert rising[stuck.begin : stuck.end].sum() > 1000
    assert SCENARIOS["pinning"].balancer == "pinning"


def answer(*series: list[tuple[float, str]]) -> str:
    result = [{"metric": {"pod": f"p{i}"}, "values": values} for i, values in enumerate(series)]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_a_range_query_is_read_and_its_series_are_added(tmp_path: Path) -> None:
    path = tmp_path / "week.json"
    path.write_text(answer([(1_700_000_000, "100"), (1_700_000_060, "160")], [(1_700_000_060, "40")]))
    scenario = read_trace(path)
    assert (scenario.name, scenario.seconds, scenario.agents) == ("week", 60, 200)
    assert scenario.demand[[0, 30, 60]].tolist() == [100, 150, 200]


@pytest.mark.parametrize(
    "text",
    [
        "time,links\n0,10\n10,20\n",
        "\ufeff0,10\n\n10,20\n",
        "2026-11-22T12:00:00Z,10\n2026-11-22T12:00:10+00:00,20\n",
        '"Time","links"\n"2026-11-22 12:00:00",10\n"2026-11-22T13:00:10+01:00",20\n',
        "10,20\n0,10\n",
    ],
)
def test_csv_is_read_with_seconds_or_times(tmp_path: Path, text: str) -> None:
    path = tmp_path / "links.csv"
    path.write_text(text)
    assert read_trace(path).demand.tolist() == list(range(10, 21))


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "has 0 points: at least 2 are needed"),
        (b"0,10\n", "has 1 points: at least 2 are needed"),
        (b"time,links\n", "has 0 points"),
        (b"0,10\n60\n", r"line 2 of .* has 1 fields: a time and a number of links expected"),
        (b"0;10\n60;20\n", r"line 1 of .* has 1 fields: a time and a number of links expected \(time,links\)"),
        (b"0,10\n60,1,200\n", "line 2 of .* has 3 fields"),
        (b"0,10\n60,many\n", "line 2 of .* has the value 'many': a number was expected"),
        (b"0,10\n60,nan\n", "has the value 'nan': a number was expected"),
        (b"0,10\nnoon,10\n", "line 2 of .* has the time 'noon': seconds or ISO 8601 expected"),
        (b"0,10\nnan,10\n", "has the time 'nan'"),
        (b"0,10\n60,20\n60,30\n", "line 3 of .* has the time 60 again: one line for each time"),
        (b"0,10\n1700000000000,10\n", r"s long: 1 s to 2678400 s are expected \(times in seconds, not in milli"),
        (b"0,-1\n60,5\n", "has -1 to 5 links: 0 to 100000000 expected"),
        (b"0,0\n60,0\n", "has 0 to 0 links"),
        ("time,links\n0,10\n".encode("utf-16"), "is neither JSON nor CSV: text in UTF-8 was expected"),
        (b'"0,10\n60,20', "is not CSV: unexpected end of data"),
        (b"<html>504 Gateway Time-out</html>\n", "is a page in HTML: the answer of"),
        (
            b'{"status":"error","errorType":"bad_data","error":"end timestamp must not be before start time"}',
            "holds no answer but an error of Prometheus: end timestamp must not be before",
        ),
        (b'{"status":"success","data":{"resultType":"vector","result":[]}}', r"holds a vector: a matrix .* not /query"),
        (b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "holds a scalar: a matrix"),
        (b'{"status":"success","data":{"resultType":"matrix","result":[]}}', r"no samples: was the query sum\("),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,2]]}]}}',
            r"is not the answer of a range query: Expected `str`",
        ),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1,"NaN"],[2,"1"]]}]}}',
            "has the value 'NaN': a number",
        ),
        (b'{"status":"success","da', "is not the answer of a range query"),
        (b'[[1,"2"]]', "is not the answer of a range query"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_reason(tmp_path: Path, content: bytes, wrong: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=wrong):
        read_trace(path)


def test_a_trace_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the trace .*missing"):
        read_trace(tmp_path / "missing")
