"""Reads an owner's own trace: the links of a real fleet over time, as CSV or as the answer of Prometheus' query_range.

CSV: a line for each point, the time and the number of links, separated by a comma; a first line of words is skipped. A
time is a number of seconds (a Unix time too) or in ISO 8601. JSON: what `GET /api/v1/query_range` returns; the series
of one point in time are added. Between two points the number of links is drawn as a straight line.
"""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from fairlead.errors import ConfigError
from fairlead_operator.simulator.scenarios.scenario import Scenario

LONGEST = 31 * 86_400
"""Seconds. A month of seconds takes minutes; a longer trace is more probably a wrong unit."""
MOST_AGENTS = 100_000_000


class Series(msgspec.Struct):
    """One series of a range query's answer."""

    values: list[tuple[float, str]] = []


class MatrixData(msgspec.Struct):
    result_type: str = msgspec.field(name="resultType")
    result: list[Series]


class RangeAnswer(msgspec.Struct):
    """The answer of `GET /api/v1/query_range`."""

    status: str
    data: MatrixData


def read_trace(path: Path) -> Scenario:
    """The trace in `path`. Raises ConfigError for a file that is no trace."""
    try:
        content = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"cannot read the trace {path}: {e.strerror}") from e
    points = _from_prometheus(path, content) if content.lstrip()[:1] == b"{" else _from_csv(path, content)
    if len(points) < 2:
        raise ConfigError(f"the trace {path} has {len(points)} points: at least 2 are needed")
    times, links = np.array(sorted(points.items())).T
    seconds = int(times[-1] - times[0])
    if not 1 <= seconds <= LONGEST:
        raise ConfigError(
            f"the trace {path} is {times[-1] - times[0]:g} s long: 1 s to {LONGEST} s are expected (times in seconds)"
        )
    if links.min() < 0 or not 1 <= links.max() <= MOST_AGENTS:
        raise ConfigError(f"the trace {path} has {links.min():g} to {links.max():g} links: 0 to {MOST_AGENTS} expected")
    demand = np.rint(np.interp(np.arange(seconds + 1), times - times[0], links)).astype(np.int64)
    return Scenario(path.stem, f"{len(points)} points of {path.name}", demand)


def _from_prometheus(path: Path, content: bytes) -> dict[float, float]:
    try:
        answer = msgspec.json.decode(content, type=RangeAnswer)
    except msgspec.MsgspecError as e:
        raise ConfigError(f"{path} is not the answer of a range query: {e} (GET /api/v1/query_range)") from e
    if answer.status != "success" or answer.data.result_type != "matrix":
        raise ConfigError(
            f"{path} holds a {answer.data.result_type} with the status {answer.status}: a matrix with the status "
            "success was expected (GET /api/v1/query_range)"
        )
    points: dict[float, float] = {}
    for series in answer.data.result:
        for at, value in series.values:
            points[at] = points.get(at, 0.0) + _number(path, value)
    return points


def _from_csv(path: Path, content: bytes) -> dict[float, float]:
    points: dict[float, float] = {}
    lines = csv.reader(content.decode("utf-8-sig", errors="replace").splitlines())
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and not line[0][:1].isdigit()):
            continue
        if len(line) != 2:
            raise ConfigError(f"line {number} of {path} has {len(line)} fields: a time and a number of links expected")
        points[_time(path, line[0])] = _number(path, line[1])
    return points


def _number(path: Path, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise ConfigError(f"{path} has the value {text[:40]!r}: a number was expected")
    return number


def _time(path: Path, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError as e:
        raise ConfigError(f"{path} has the time {text[:40]!r}: seconds or ISO 8601 expected") from e
