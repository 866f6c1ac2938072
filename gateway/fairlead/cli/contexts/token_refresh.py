"""The token that a command presents: that of its context, refreshed before it expires.

`api_options` asks for it. A refresh holds a lock, because an issuer that gives a new refresh token with each use
refuses the old one: two commands at the same time would log the user out.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from fairlead.cli.contexts.contexts_file import Context
from fairlead.cli.contexts.credentials import LoginTokens, credentials_path, read_credentials, write_credentials
from fairlead.errors import Unauthorized, Unavailable

REFRESH_BEFORE: Final = 60.0
"""Seconds before the end of a token from which on it is refreshed."""
LOCK_TIMEOUT: Final = 30.0
"""Seconds to wait for another command that refreshes the same tokens."""


async def current_token(name: str, context: Context) -> str | None:
    """The token of a context, refreshed if it is about to expire; None if nobody has logged in. Raises Unauthorized if
    it has expired and cannot be refreshed, and Unavailable if the issuer does not answer."""
    found = read_credentials(name)
    if found is None or not found.belongs_to(context):
        return None
    if found.expires - time.time() > REFRESH_BEFORE:
        return found.token
    async with _locked(name):
        found = read_credentials(name) or found
        if found.expires - time.time() > REFRESH_BEFORE:
            return found.token
        return await _refreshed(name, context, found)


async def _refreshed(name: str, context: Context, old: LoginTokens) -> str:
    from fairlead.cli.contexts.device_login import refresh

    try:
        if not old.refresh_token:
            raise Unauthorized("the issuer has given no refresh token")
        fresh = await refresh(context, old.refresh_token)
    except (Unauthorized, Unavailable) as e:
        if old.expires > time.time():
            return old.token
        if isinstance(e, Unavailable):
            raise
        raise Unauthorized(f"the login of the context {name} has expired ({e.message}): `fairlead login`") from e
    write_credentials(name, fresh)
    return fresh.token


@asynccontextmanager
async def _locked(name: str) -> AsyncIterator[None]:
    path = credentials_path(name).with_suffix(".lock")
    file = await asyncio.to_thread(_lock, path)
    try:
        yield
    finally:
        os.close(file)


def _lock(path: Path) -> int:
    """The file, which is locked until it is closed."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError as e:
            if time.monotonic() > deadline:
                os.close(file)
                raise Unavailable(f"another command has held {path} for {LOCK_TIMEOUT:g} s: try again later") from e
        time.sleep(random.uniform(0.05, 0.15))
