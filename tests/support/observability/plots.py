"""Lines of one panel as an SVG: axes, a line and a legend for each series, nothing else.

Used by dashboard_answers.py for docs/dashboards.md. Text and lines take the colour of the page, so that they can be
read on a dark one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Line = tuple[str, Sequence[tuple[float, float]]]

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 28, 26
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888")
"""Told apart by those, too, who see few colours (Tol's bright)."""


def drawn(title: str, unit: str, lines: Sequence[Line], begin: float) -> str:
    """Times are seconds since `begin`."""
    times = [at for _, points in lines for at, _ in points]
    highest = max((value for _, points in lines for _, value in points), default=0.0) or 1.0
    across = (WIDTH - LEFT - RIGHT) / max(max(times) - begin, 1.0)
    up = (HEIGHT - TOP - BOTTOM) / highest

    def place(at: float, value: float) -> str:
        return f"{LEFT + (at - begin) * across:.1f},{HEIGHT - BOTTOM - value * up:.1f}"

    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        '  font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)} ({escape(unit)})</text>',
    ]
    for part in range(5):
        value = highest * part / 4
        y = HEIGHT - BOTTOM - value * up
        made.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        made.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    made += [
        f'<text x="{LEFT + second * across:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{second} s</text>'
        for second in range(0, int(max(times) - begin) + 1, 10)
    ]
    for at, (legend, points) in enumerate(lines):
        colour = COLOURS[at % len(COLOURS)]
        path = " ".join(place(*point) for point in points)
        made.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        y = TOP + 8 + 15 * at
        made.append(f'<rect x="{WIDTH - RIGHT + 10}" y="{y - 8}" width="10" height="10" fill="{colour}"/>')
        made.append(f'<text x="{WIDTH - RIGHT + 25}" y="{y + 1}">{escape(legend)}</text>')
    return "\n".join([*made, "</svg>"]) + "\n"
