"""What the relays of the tests have in common. Used by fixtures and tests that put one before a server."""

from __future__ import annotations

import asyncio


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write what is read until either side ends; then close the writer."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()
