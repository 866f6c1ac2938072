"""A file from an agent or to one: octets, digest, progress; and the remote half is told when ours has failed.

Used by `cp`. `file.get` streams into a window that is read once, in order; `file.put` takes numbered input. Both go on
by themselves after a lost connection, since the client knows what was read and what was sent. What arrives is kept only
if both sides have seen the same octets.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from fairlead.cli.terminal.attach import conclude, end_tasks, talk
from fairlead.cli.transfer.local_files import Sink, Source, sink
from fairlead.cli.transfer.progress import Progress
from fairlead.client import Client, Command, End
from fairlead.client.command import CHUNK
from fairlead.errors import FairleadError, InvalidRequest

CANCEL_TIMEOUT = 5.0
"""Seconds for the request that ends the remote half; its deadline ends it if that does not arrive."""
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class RemotePath:
    agent: str
    path: str

    def __str__(self) -> str:
        return f"{self.agent}:{self.path}"


@dataclass(frozen=True, slots=True)
class CopyOptions:
    deadline: float
    overwrite: bool
    parents: bool
    quiet: bool


class _Facts(msgspec.Struct):
    """The first row of file.get."""

    size: int
    mode: str


class _Sum(msgspec.Struct):
    """How both methods end."""

    size: int
    sha256: str


async def download(client: Client, source: RemotePath, target: str, wishes: CopyOptions) -> int:
    """The exit code."""
    name = source.path.rstrip("/").rpartition("/")[2] or "file"
    command = client.command(
        source.agent, "file.get", {"path": source.path}, deadline=wishes.deadline, lane="bulk", retain="window"
    )
    place = sink(target, name, wishes.overwrite)
    try:
        with Progress(name, quiet=wishes.quiet or target == "-") as progress:
            async with _attended(command):
                digest, size, mode = await _take(command, place, progress)
        assert command.end is not None
        if command.end.state != "ok":
            return conclude(command.end, command.id)
        _compare(command.end, size, digest, source, "nothing was kept here" if target != "-" else "do not use it")
        place.keep(mode)
        return 0
    finally:
        place.close()


async def _take(command: Command, place: Sink, progress: Progress) -> tuple[str, int, int | None]:
    """The digest and the number of the octets that came, and the file's mode."""
    digest, size, mode = hashlib.sha256(), 0, None
    async for chunk in command:
        if chunk.kind == "file":
            await place.write(chunk.data)
            digest.update(chunk.data)
            size += len(chunk.data)
            progress.add(len(chunk.data))
        elif chunk.kind == "row":
            try:
                facts = msgspec.json.decode(chunk.data, type=_Facts)
                mode = int(facts.mode, 8) & 0o777
            except (msgspec.MsgspecError, ValueError) as e:
                raise FairleadError(f"{chunk.agent} does not describe its file as file.get does: {e}") from e
            progress.total = facts.size
    return digest.hexdigest(), size, mode


async def upload(client: Client, source_path: str, target: RemotePath, wishes: CopyOptions) -> int:
    """The exit code."""
    source = Source(source_path)
    try:
        if target.path.endswith("/"):
            if source_path == "-":
                raise InvalidRequest(f"what comes from stdin has no name: name the file, {target}NAME")
            target = RemotePath(target.agent, target.path + source_path.rpartition("/")[2])
        payload: dict[str, object] = {"path": target.path, "overwrite": wishes.overwrite, "parents": wishes.parents}
        if source.size is not None and source.mode is not None:
            payload |= {"size": source.size, "mode": f"{source.mode:04o}", "sha256": await _digest(source)}
        command = client.command(target.agent, "file.put", payload, deadline=wishes.deadline, lane="bulk")
        with Progress(target.path.rpartition("/")[2], source.size, wishes.quiet) as progress:
            async with _attended(command):
                end, digest, size = await _give(command, source, progress)
        if end.state != "ok":
            return conclude(end, command.id)
        _compare(end, size, digest, target, f"remove {target}")
        return 0
    finally:
        source.close()


async def _give(command: Command, source: Source, progress: Progress) -> tuple[End, str, int]:
    digest, size = hashlib.sha256(), 0

    async def send() -> None:
        nonlocal size
        while data := await source.read(CHUNK):
            await command.input(data)
            digest.update(data)
            size += len(data)
            progress.add(len(data))
        await command.input(b"", end=True)

    ending, sending = asyncio.create_task(command.wait()), asyncio.create_task(send())
    try:
        done, _ = await asyncio.wait([ending, sending], return_when=asyncio.FIRST_COMPLETED)
        if sending in done:
            try:
                sending.result()
            except InvalidRequest:
                pass  # the command is over: its end says why
        return await ending, digest.hexdigest(), size
    finally:
        await end_tasks(sending, ending)


async def _digest(source: Source) -> str:
    digest = hashlib.sha256()
    while block := await source.read(BLOCK):
        digest.update(block)
        await asyncio.sleep(0)  # Ctrl-C is heard between two blocks
    source.rewind()
    return digest.hexdigest()


def _compare(end: End, size: int, digest: str, remote: RemotePath, advice: str) -> None:
    """Raises FairleadError when the other side has seen other octets than we."""
    try:
        told = msgspec.convert(end.payload, _Sum)
    except msgspec.MsgspecError as e:
        raise FairleadError(f"{remote}: the agent gave no digest ({e}): {advice}, and copy it again") from e
    if (told.size, told.sha256) != (size, digest):
        raise FairleadError(
            f"{remote}: {size} bytes of SHA-256 {digest} here, {told.size} of {told.sha256} there: {advice}, and copy "
            "it again"
        )


@asynccontextmanager
async def _attended(command: Command) -> AsyncIterator[None]:
    """The command, which is told to end when we cannot go on."""
    async with command:
        try:
            yield
        except BaseException:
            if command.end is None:
                await _call_off(command)
            raise


async def _call_off(command: Command) -> None:
    try:
        async with asyncio.timeout(CANCEL_TIMEOUT):
            await command.cancel()
    except (FairleadError, TimeoutError):
        talk(f"the agent could not be told that the copy is off; `fairlead cancel {command.id}` does it")
