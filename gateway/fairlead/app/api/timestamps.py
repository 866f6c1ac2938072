"""Times as the API writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(ms: int) -> str | None:
    """RFC 3339 with milliseconds, in UTC; None for 0, which stands for never."""
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
