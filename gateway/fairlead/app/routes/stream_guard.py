"""A stream of results that ends when its reader may no longer read it.

The handlers of commands wrap the pages of every stream in it. A stream may stay open for hours, so the check at its
beginning is not enough: a revoked token, a changed role, a changed label or a removed tenant has to end it within 5
seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from fairlead.authorization.authorizer import Authorizer
from fairlead.authorization.policy import Verb
from fairlead.authorization.subject import Subject
from fairlead.routing.commands.results import POLL_INTERVAL, ResultsUpdate

CHECK_INTERVAL: Final = 1.5
"""Seconds without results after which the stream looks whether it is time to check."""
AGE: Final = 1.0
"""Seconds for which a check holds. With CHECK_INTERVAL and the second or two that a node takes to learn of a revocation
or of a changed label, it stays below 5 s."""


def watched(
    authorizer: Authorizer,
    subject: Subject,
    verb: Verb,
    command: str,
    open_pages: Callable[[float], AsyncGenerator[ResultsUpdate]],
) -> AsyncGenerator[ResultsUpdate]:
    """The pages that `open_pages` makes for a caller. It is given the interval in which an update must come, even an
    empty one."""
    if subject.administrator and not subject.tenant:
        return open_pages(POLL_INTERVAL)
    return _checked(authorizer, subject, verb, command, open_pages(CHECK_INTERVAL))


async def _checked(
    authorizer: Authorizer, subject: Subject, verb: Verb, command: str, pages: AsyncGenerator[ResultsUpdate]
) -> AsyncGenerator[ResultsUpdate]:
    clock = asyncio.get_running_loop().time
    checked = clock()
    async with aclosing(pages):
        async for page in pages:
            if clock() - checked >= AGE:
                authorizer.check_credential(subject)
                await authorizer.require_command(subject, verb, command)
                checked = clock()
            yield page
