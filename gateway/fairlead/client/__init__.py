"""A client of the platform API: agents, labels, and commands whose results arrive as they are written.

    async with Client("http://127.0.0.1:8081", token) as client:
        async with client.command("web-1", "exec", {"argv": ["uname", "-a"]}) as command:
            async for chunk in command:
                sys.stdout.buffer.write(chunk.data)
        print(command.end.state)

For scripts, services, and the command line, which reaches the API only through it. Nothing here prints, logs or reads
the environment. Several addresses, separated by commas, are nodes of one fleet: when one is lost, the next one is used.
Errors are those of `fairlead.errors`: a problem document with code `agent_offline` raises AgentOffline.

`client` has the requests as methods, `command` follows one command, `run` one run, `event_reader` the events, `models`
and `run_models` are the types of the answers, `transport` sends requests to one address or several, `result_lines`
parses streams, and `problem_details` turns errors into exceptions."""

from fairlead.client.client import Client
from fairlead.client.command import Command
from fairlead.client.models import (
    Agent,
    AgentDetail,
    AgentEvent,
    Chunk,
    End,
    EnrolmentTokenInfo,
    Exit,
    FailedCommand,
    Failure,
    Identity,
    LastLink,
    Latency,
    Link,
    LostEvents,
    NewEnrolmentToken,
    NewToken,
    NodeInfo,
    Permission,
    RankedLink,
    Ranking,
    TokenInfo,
)
from fairlead.client.pending_agents import PendingAgentInfo, PendingAgents
from fairlead.client.run import FollowedRun, RunRequests
from fairlead.client.run_models import EndedGroup, EndedTarget, RunPreview, RunProgress, RunStatus
from fairlead.client.transport import ConnectionLost, addresses, check_address

__all__ = [
    "Agent",
    "AgentDetail",
    "AgentEvent",
    "Chunk",
    "Client",
    "Command",
    "ConnectionLost",
    "End",
    "EndedGroup",
    "EndedTarget",
    "EnrolmentTokenInfo",
    "Exit",
    "FailedCommand",
    "Failure",
    "FollowedRun",
    "Identity",
    "LastLink",
    "Latency",
    "Link",
    "LostEvents",
    "NewEnrolmentToken",
    "NewToken",
    "NodeInfo",
    "PendingAgentInfo",
    "PendingAgents",
    "Permission",
    "RankedLink",
    "Ranking",
    "RunPreview",
    "RunProgress",
    "RunRequests",
    "RunStatus",
    "TokenInfo",
    "addresses",
    "check_address",
]
