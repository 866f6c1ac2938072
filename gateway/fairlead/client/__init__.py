"""The platform API from Python: who is there, labels, and commands whose results come as they are written.

    async with Client("http://127.0.0.1:8081", token) as client:
        async with client.command("web-1", "exec", {"argv": ["uname", "-a"]}) as command:
            async for chunk in command:
                sys.stdout.buffer.write(chunk.data)
        print(command.end.state)

For scripts and services, and for the command line, which has no other way in. Nothing here prints, logs or reads the
environment. Several addresses, separated by commas, are nodes of one fleet: the next one is asked when one is lost.
Errors are the gateway's own tree, `fairlead.errors`: a problem document of code `agent_offline` is an AgentOffline.
"""

from fairlead.client.client import Client
from fairlead.client.command import Command
from fairlead.client.models import (
    Agent,
    AgentDetail,
    Chunk,
    End,
    Exit,
    FailedCommand,
    Failure,
    LastLink,
    Latency,
    Link,
    RankedLink,
    Ranking,
)
from fairlead.client.transport import ConnectionLost, addresses, check_address

__all__ = [
    "Agent",
    "AgentDetail",
    "Chunk",
    "Client",
    "Command",
    "ConnectionLost",
    "End",
    "Exit",
    "FailedCommand",
    "Failure",
    "LastLink",
    "Latency",
    "Link",
    "RankedLink",
    "Ranking",
    "addresses",
    "check_address",
]
