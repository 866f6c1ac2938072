"""Text that others wrote, made safe to show: the one place where it is done.

Used wherever what an agent, a gateway or a caller has said meets a terminal, a line of a log or the service manager.
JSON is not cleaned, it escapes: see `fairlead.cli.output.view`. Imports nothing, so that every room may import it.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """`text` in one line, of printable characters alone. Each other one is a "?": control characters and line ends, of
    which escape sequences and second lines are made, and those that turn the direction of what follows or are not seen.
    """
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
