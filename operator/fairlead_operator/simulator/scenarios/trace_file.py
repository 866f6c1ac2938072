"""Reads an owner's own trace: the links of a real fleet over time, as CSV or as the answer of Prometheus' query_range.

CSV: a line for each point, the time and the number of links, separated by a comma; a first line of words is skipped. A
time is a number of seconds (a Unix time too) or in ISO 8601, in UTC unless it says otherwise. JSON: what
`GET /api/v1/query_range` returns; the series of one point in time are added. Between two points the number of links is
drawn as a straight line.
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from fairlead.errors import ConfigError
from fairlead_operator.simulator.scenarios.scenario import Scenario

LONGEST = 31 * 86_400
"""The longest trace in seconds. A month takes minutes to simulate; a longer trace probably has the wrong unit."""
MOST_AGENTS = 100_000_000
QUERY = "sum(fairlead_links)"


class Series(msgspec.Struct):
    """One series of a range query's answer."""

    values: list[tuple[float, str]] = []


class QueryData(msgspec.Struct):
    result_type: str = msgspec.field(name="resultType")
    result: msgspec.Raw


class QueryAnswer(msgspec.Struct):
    """An answer of Prometheus' API: with `data`, or with `error`."""

    status: str
    data: QueryData | None = None
    error: str = ""


def read_trace(path: Path) -> Scenario:
    """The trace in `path`. Raises ConfigError for a file that is no trace."""
    try:
        content = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"cannot read the trace {path}: {e.strerror}") from e
    if content.lstrip().startswith(b"<"):
        raise ConfigError(f"{path} is a page in HTML: the answer of GET /api/v1/query_range, or CSV, was expected")
    is_json = content.lstrip().startswith((b"{", b"["))
    points = _from_prometheus(path, content) if is_json else _from_csv(path, content)
    if len(points) < 2:
        raise ConfigError(f"the trace {path} has {len(points)} points: at least 2 are needed")
    times, links = np.array(sorted(points.items())).T
    seconds = int(times[-1] - times[0])
    if not 1 <= seconds <= LONGEST:
        raise ConfigError(
            f"the trace {path} is {times[-1] - times[0]:g} s long: 1 s to {LONGEST} s are expected (times in seconds, "
            "not in milliseconds)"
        )
    if links.min() < 0 or not 1 <= links.max() <= MOST_AGENTS:
        raise ConfigError(f"the trace {path} has {links.min():g} to {links.max():g} links: 0 to {MOST_AGENTS} expected")
    demand = np.rint(np.interp(np.arange(seconds + 1), times - times[0], links)).astype(np.int64)
    return Scenario(path.stem, f"{len(points)} points of {path.name}", demand)


def _from_prometheus(path: Path, content: bytes) -> dict[float, float]:
    try:
        answer = msgspec.json.decode(content, type=QueryAnswer)
    except msgspec.MsgspecError as e:
        raise ConfigError(f"{path} is not the answer of a range query: {e} (GET /api/v1/query_range)") from e
    if answer.status != "success" or answer.data is None:
        raise ConfigError(f"{path} holds no answer but an error of Prometheus: {answer.error or answer.status}")
    if answer.data.result_type != "matrix":
        raise ConfigError(
            f"{path} holds a {answer.data.result_type}: a matrix was expected (GET /api/v1/query_range, not /query)"
        )
    try:
        found = msgspec.json.decode(answer.data.result, type=list[Series])
    except msgspec.MsgspecError as e:
        raise ConfigError(f"{path} is not the answer of a range query: {e} in data.result") from e
    if not any(series.values for series in found):
        raise ConfigError(f"{path} has no samples: was the query {QUERY}, and its range one with samples?")
    points: dict[float, float] = {}
    for series in found:
        for at, value in series.values:
            points[at] = points.get(at, 0.0) + _number(str(path), value)
    return points


def _from_csv(path: Path, content: bytes) -> dict[float, float]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is neither JSON nor CSV: text in UTF-8 was expected") from e
    points: dict[float, float] = {}
    try:
        for number, line in enumerate(csv.reader(text.splitlines(), strict=True), 1):
            where = f"line {number} of {path}"
            if not line or (number == 1 and not any(letter.isdigit() for letter in line[0])):
                continue
            if len(line) != 2:
                raise ConfigError(f"{where} has {len(line)} fields: a time and a number of links expected (time,links)")
            at = _time(where, line[0])
            if at in points:
                raise ConfigError(f"{where} has the time {line[0]} again: one line for each time was expected")
            points[at] = _number(where, line[1])
    except csv.Error as e:
        raise ConfigError(f"{path} is not CSV: {e}") from e
    return points


def _number(where: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise ConfigError(f"{where} has the value {text[:40]!r}: a number was expected")
    return number


def _time(where: str, text: str) -> float:
    """Seconds since 1970, or since any other moment."""
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        if np.isfinite(number):
            return number
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as e:
        raise ConfigError(f"{where} has the time {text[:40]!r}: seconds or ISO 8601 expected") from e
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
