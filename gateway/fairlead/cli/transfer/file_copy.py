"""Copies one file from an agent or to one, and compares the digests of both sides.

Used by `cp`. `file.get` streams into a window, which is read once and in order; `file.put` takes numbered input. Both
continue after a lost connection, because the client knows what it has read and sent. If the copy fails on this machine,
the command on the agent is cancelled. A copy is kept only if both sides have the same digest.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

import msgspec

from fairlead.cli import exit_codes
from fairlead.cli.terminal.attach import cancel_tasks
from fairlead.cli.terminal.cancellation import cancelled_on_failure
from fairlead.cli.terminal.results import notify, report_end
from fairlead.cli.transfer.local_files import LocalSource, LocalTarget, open_target
from fairlead.cli.transfer.progress import CopyProgress
from fairlead.client import Client, Command, End
from fairlead.errors import FairleadError, InvalidRequest

DIGEST_BLOCK = 1 << 20
"""Bytes that are hashed at once."""


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path on an agent."""

    agent: str
    path: str

    def __str__(self) -> str:
        return f"{self.agent}:{self.path}"


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The user's options. `deadline` is in seconds and applies to the whole copy."""

    deadline: float
    overwrite: bool
    parents: bool
    quiet: bool


class _FileFacts(msgspec.Struct):
    """The first row of file.get."""

    size: int
    mode: str


class _FileDigest(msgspec.Struct):
    """The result of both methods."""

    size: int
    sha256: str


async def download(client: Client, source: RemotePath, target: str, options: CopyOptions) -> int:
    """Copy `source` to `target`, a local path or `-`; returns the exit code."""
    name = source.path.rstrip("/").rpartition("/")[2] or "file"
    command = client.command(
        source.agent, "file.get", {"path": source.path}, deadline=options.deadline, lane="bulk", retain="window"
    )
    local = open_target(target, name, options.overwrite)
    try:
        with CopyProgress(name, quiet=options.quiet or target == "-") as progress:
            async with cancelled_on_failure(command):
                digest, size, mode = await _receive(command, local, progress)
        assert command.end is not None
        if command.end.state != "ok":
            return report_end(command.end, command.id)
        _compare(command.end, size, digest, source, "nothing was kept here" if target != "-" else "do not use it")
        local.commit(mode)
        return exit_codes.OK
    finally:
        local.close()


async def _receive(command: Command, local: LocalTarget, progress: CopyProgress) -> tuple[str, int, int | None]:
    """Returns the digest and the number of the bytes received, and the file's mode."""
    digest, size, mode = hashlib.sha256(), 0, None
    async for chunk in command:
        if chunk.kind == "file":
            await local.write(chunk.data)
            digest.update(chunk.data)
            size += len(chunk.data)
            progress.add(len(chunk.data))
        elif chunk.kind == "row":
            try:
                facts = msgspec.json.decode(chunk.data, type=_FileFacts)
                mode = int(facts.mode, 8) & 0o777
            except (msgspec.MsgspecError, ValueError) as e:
                raise FairleadError(f"{chunk.agent}: invalid description of the file from file.get: {e}") from e
            progress.set_total(facts.size)
    return digest.hexdigest(), size, mode


async def upload(client: Client, source: str, target: RemotePath, options: CopyOptions) -> int:
    """Copy `source`, a local path or `-`, to `target`; returns the exit code."""
    local = LocalSource(source)
    try:
        if target.path.endswith("/"):
            if source == "-":
                raise InvalidRequest(f"stdin has no file name: write the target as {target}NAME")
            target = RemotePath(target.agent, target.path + source.rpartition("/")[2])
        payload: dict[str, object] = {"path": target.path, "overwrite": options.overwrite, "parents": options.parents}
        if local.size is not None and local.mode is not None:
            payload |= {"size": local.size, "mode": f"{local.mode:04o}", "sha256": await _digest(local)}
        command = client.command(
            target.agent, "file.put", payload, deadline=options.deadline, lane="bulk", takes_input=True
        )
        with CopyProgress(target.path.rpartition("/")[2], local.size, options.quiet) as progress:
            async with cancelled_on_failure(command):
                end, digest, size = await _send(command, local, progress)
        if end.state != "ok":
            code = report_end(end, command.id)
            if end.error is not None and end.error.code == "not_found" and not options.parents:
                notify("--parents creates the missing folders on the agent")
            return code
        _compare(end, size, digest, target, f"remove {target}")
        return exit_codes.OK
    finally:
        local.close()


async def _send(command: Command, local: LocalSource, progress: CopyProgress) -> tuple[End, str, int]:
    """Returns the end of the command, the digest and the number of the bytes sent."""
    digest, size = hashlib.sha256(), 0

    async def send() -> None:
        nonlocal size
        while data := await local.read(command.input_limit):
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
                pass  # the command has ended: its end says why
        return await ending, digest.hexdigest(), size
    finally:
        await cancel_tasks(sending, ending)


async def _digest(local: LocalSource) -> str:
    digest = hashlib.sha256()
    while block := await local.read(DIGEST_BLOCK):
        digest.update(block)
        await asyncio.sleep(0)  # Ctrl-C is handled between two blocks
    local.rewind()
    return digest.hexdigest()


def _compare(end: End, size: int, digest: str, remote: RemotePath, advice: str) -> None:
    """Raise FairleadError unless the agent reports the same size and digest."""
    try:
        theirs = msgspec.convert(end.payload, _FileDigest)
    except msgspec.MsgspecError as e:
        raise FairleadError(f"{remote}: the agent sent no digest ({e}): {advice}, and copy it again") from e
    if (theirs.size, theirs.sha256) != (size, digest):
        raise FairleadError(
            f"{remote}: the copies differ, {size} bytes with SHA-256 {digest} here and {theirs.size} bytes with "
            f"{theirs.sha256} there: {advice}, and copy it again"
        )
