"""Makes text from other programs safe to print. This is the only module that does so.

Every module that writes text from an agent, a gateway or a caller to a terminal, a log line or the service manager
calls it. JSON output escapes such characters instead: see `fairlead.cli.output.formats`. This module imports nothing
from the project, so that every package may import it.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """`text` as one line of printable characters. Every other character is replaced with "?": control characters and
    line ends, because they form escape sequences and additional lines, and characters that are invisible or change
    the direction of the text.
    """
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
