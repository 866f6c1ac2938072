"""The tokens of a context: a file of mode 0600 for each, refreshed before they expire.

A refresh holds a lock, because an issuer that gives a new refresh token with each use refuses the old one: two commands
at the same time would log the user out.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from fairlead.cli.contexts.contexts_file import Context, config_folder, write_file
from fairlead.errors import ConfigError, Unauthorized, Unavailable

REFRESH_BEFORE: Final = 60.0
"""Seconds before the end of a token from which on it is refreshed."""
LOCK_TIMEOUT: Final = 30.0
"""Seconds to wait for another command that refreshes the same tokens."""


class LoginTokens(msgspec.Struct, forbid_unknown_fields=True):
    """`token` is what the gateway gets; `issuer` and `client_id` say who has given it, and to whom."""

    issuer: str
    client_id: str
    token: str
    expires: float
    refresh_token: str = ""

    def belongs_to(self, context: Context) -> bool:
        return (self.issuer, self.client_id) == (context.issuer, context.client_id)


def credentials_path(name: str) -> Path:
    return config_folder() / "credentials" / f"{name}.json"


def read_credentials(name: str) -> LoginTokens | None:
    """Raises ConfigError if the file cannot be used, or if others may read it."""
    path = credentials_path(name)
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            octets = file.read()
    except FileNotFoundError:
        return None
    except OSError as e:
        raise ConfigError(f"{path} cannot be read ({e.strerror or e}): check its permissions") from e
    if mode & 0o077:
        raise ConfigError(f"{path} has the mode {mode:o}, so that others may read your tokens: `chmod 600` it")
    try:
        return msgspec.json.decode(octets, type=LoginTokens)
    except msgspec.MsgspecError as e:
        raise ConfigError(f"{path} is not a file of tokens ({e}): `fairlead login` writes a new one") from e


def write_credentials(name: str, credentials: LoginTokens) -> None:
    write_file(credentials_path(name), msgspec.json.encode(credentials))


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
