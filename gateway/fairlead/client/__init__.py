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

from fairlead.client.access.agent_keys import AgentKeyRequests
from fairlead.client.access.approvals import ApprovalInfo, Approvals
from fairlead.client.access.enrolment_tokens import EnrolmentTokenInfo, EnrolmentTokenRequests, IssuedEnrolmentToken
from fairlead.client.access.pending_agents import PendingAgentInfo, PendingAgents
from fairlead.client.access.service_tokens import IssuedToken, ServiceTokenRequests, TokenInfo
from fairlead.client.client import Client
from fairlead.client.command import Command
from fairlead.client.events.acknowledgements import Acknowledgements
from fairlead.client.events.event_groups import EventGroupInfo, EventGroupRequests
from fairlead.client.events.event_sinks import DeadLetterInfo, EventSinkInfo, EventSinkRequests, RetriedLetterInfo
from fairlead.client.models import (
    Agent,
    AgentDetail,
    AgentEvent,
    ChangedFact,
    Chunk,
    End,
    Exit,
    FactChange,
    FailedCommand,
    Failure,
    Identity,
    LastLink,
    Latency,
    Link,
    LostEvents,
    MethodInfo,
    NeededApproval,
    NodeInfo,
    Permission,
    RankedLink,
    Ranking,
)
from fairlead.client.open_commands import CommandTarget, OpenCommand
from fairlead.client.run import FollowedRun, RunRequests
from fairlead.client.run_models import EndedGroup, EndedTarget, ListedRun, RunPreview, RunProgress, RunStatus
from fairlead.client.transport import ConnectionLost, addresses, check_address

__all__ = [
    "Acknowledgements",
    "Agent",
    "AgentDetail",
    "AgentEvent",
    "AgentKeyRequests",
    "ApprovalInfo",
    "Approvals",
    "ChangedFact",
    "Chunk",
    "Client",
    "Command",
    "CommandTarget",
    "ConnectionLost",
    "DeadLetterInfo",
    "End",
    "EndedGroup",
    "EndedTarget",
    "EnrolmentTokenInfo",
    "EnrolmentTokenRequests",
    "EventGroupInfo",
    "EventGroupRequests",
    "EventSinkInfo",
    "EventSinkRequests",
    "Exit",
    "FactChange",
    "FailedCommand",
    "Failure",
    "FollowedRun",
    "Identity",
    "IssuedEnrolmentToken",
    "IssuedToken",
    "LastLink",
    "Latency",
    "Link",
    "ListedRun",
    "LostEvents",
    "MethodInfo",
    "NeededApproval",
    "NodeInfo",
    "OpenCommand",
    "PendingAgentInfo",
    "PendingAgents",
    "Permission",
    "RankedLink",
    "Ranking",
    "RetriedLetterInfo",
    "RunPreview",
    "RunProgress",
    "RunRequests",
    "RunStatus",
    "ServiceTokenRequests",
    "TokenInfo",
    "addresses",
    "check_address",
]
