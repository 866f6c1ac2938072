"""The operations of the HTTP API: the path of each, what it accepts and returns, and how it can fail.

This is their only declaration. `factory` makes the routes from it and rejects query parameters that are not in it, and
`openapi` makes the document from it, so the two cannot differ. `schemas` declares the bodies.
"""

from __future__ import annotations

from fairlead.app.api import access_schemas, node_schemas, schemas
from fairlead.app.api.events.event_operations import EVENT_OPERATIONS
from fairlead.app.api.operation import (
    APPROVAL,
    EVENT_ID,
    FLAG,
    KNOWN,
    LATER,
    TEXT,
    WHOLE_NUMBER,
    Operation,
    Param,
)
from fairlead.app.api.runs.run_operations import RUN_OPERATIONS
from fairlead.app.api.runs.schedule_operations import SCHEDULE_OPERATIONS
from fairlead.authorization.policy import Verb
from fairlead.routing.observability.link_stats import MEASURES
from fairlead.routing.observability.worst_links import MAX_LINKS

OPERATIONS = (
    Operation(
        "post", "/v1/commands", "postCommand",
        "Run a command on an agent. With `Accept: application/x-ndjson` or `text/event-stream` the answer is the "
        "stream of its results, after a first line with its id.",
        "The command is stored and will be delivered to the agent.",
        202, schemas.AcceptedCommand, takes=schemas.NewCommand, streams=True, faults=(400, 409, 410, 413, *KNOWN),
        needs=(Verb.RUN,),
        params=(
            APPROVAL,
            Param(
                "Idempotency-Key", "A request that is repeated with the same key returns the first command.",
                {**TEXT, "maxLength": 255}, "header",
            ),
            Param("traceparent", "W3C trace context. Invalid values are ignored.", TEXT, "header"),
        ),
    ),
    Operation(
        "get", "/v1/commands", "listCommands",
        "List the commands that have not ended and whose results the caller may read: of one agent, or of all.",
        "Commands, with the cursor of the next page.",
        200, schemas.CommandPage, faults=LATER, needs=(Verb.RUN, Verb.RESULTS),
        params=(
            Param("agent", "Only commands of this agent, all in one page.", TEXT),
            Param("method", "Only commands with this method.", TEXT),
            Param("state", "Only commands in this state.", {**TEXT, "enum": ["queued", "sent", "running"]}),
            Param(
                "limit", "A page ends with about so many commands; it may have fewer although there is a cursor.",
                {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
            ),
            Param("cursor", "The cursor of the page before.", TEXT),
        ),
    ),
    Operation(
        "get", "/v1/commands/{command}", "getCommand", "Get the state of a command.",
        "The current state of the command.", 200, schemas.Command, faults=KNOWN, needs=(Verb.RUN, Verb.RESULTS),
    ),
    Operation(
        "delete", "/v1/commands/{command}", "cancelCommand",
        "Cancel a command. A command that has already ended is not changed.",
        "Cancellation was requested; `state` is the current state.",
        202, schemas.CancelledCommand, faults=KNOWN, needs=(Verb.RUN, Verb.CANCEL),
    ),
    Operation(
        "get", "/v1/commands/{command}/results", "getResults",
        "Get the results of a command from an offset on, as lines; with `follow`, wait for further results until the "
        "command ends. The last line has the end of the command.",
        "A stream of lines in the format that the request accepts.",
        200, None, streams=True, faults=(410, *KNOWN), needs=(Verb.RUN, Verb.RESULTS),
        params=(
            Param("from", "The first offset to return.", WHOLE_NUMBER),
            Param("follow", "Wait for further results until the command ends.", FLAG),
            Param(
                "Last-Event-ID", "For server-sent events: the last offset that was received.", EVENT_ID, "header"
            ),
        ),
    ),
    Operation(
        "post", "/v1/commands/{command}/input", "postInput", "Send chunk `n` of the input, at most 64 KiB.",
        "The chunk is stored and will be delivered to the agent.",
        204, None, octets=True, faults=(400, 409, 413, *KNOWN), needs=(Verb.RUN, Verb.INPUT),
        params=(
            Param(
                "n", "Number of the chunk, starting at 0. The same chunk may be sent again.",
                {**WHOLE_NUMBER, "maximum": 1 << 31},
            ),
            Param("end", "This is the last chunk.", FLAG),
        ),
    ),
    Operation(
        "put", "/v1/contents/{digest}", "putContent",
        "Store octets under their SHA-256, at most 1 MiB, for all commands and runs that name them.",
        "The content is stored, perhaps since an earlier request.",
        200, schemas.StoredContent, octets=True, faults=(413, *LATER), needs=(Verb.RUN,),
    ),
    *RUN_OPERATIONS,
    *SCHEDULE_OPERATIONS,
    Operation(
        "get", "/v1/agents", "listAgents", "List agents page by page, ordered by shard and name.",
        "One page of agents, with the cursor of the next page.",
        200, schemas.AgentPage, faults=LATER, needs=(Verb.VIEW,),
        params=(
            Param(
                "selector", "Only agents whose labels and facts match, such as `env in (prod,dev),os=linux,!retired`.",
                {**TEXT, "maxLength": 1024},
            ),
            Param("state", "Only agents in this state.", {**TEXT, "enum": ["online", "away", "offline"]}),
            Param(
                "limit", "Maximum number of agents in the page.",
                {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
            ),
            Param("cursor", "The cursor of the page before.", TEXT),
            Param("count", "Whether all agents that match are counted, too.", {"type": "boolean", "default": False}),
        ),
    ),
    Operation(
        "get", "/v1/agents/{agent}", "getAgent", "Get one agent, and why it is not online.",
        "The agent with its link, its open commands and its recent failures.",
        200, schemas.AgentDetail, faults=KNOWN, needs=(Verb.VIEW,),
    ),
    Operation(
        "patch", "/v1/agents/{agent}", "labelAgent", "Set or remove labels of an agent.", "All labels of the agent.",
        200, schemas.Labels, takes=schemas.Labels, faults=(400, 413, *KNOWN), needs=(Verb.LABEL,),
    ),
    Operation(
        "delete", "/v1/agents/{agent}", "deleteAgent",
        "Delete an agent that has no link: its row, labels, facts and events, and its open commands.",
        "The agent and everything stored about it are deleted.",
        200, schemas.DeletedAgent, faults=(409, *KNOWN), needs=(Verb.DELETE,),
    ),
    Operation(
        "get", "/v1/agents/{agent}/link", "getLink",
        "Get the state and latencies of the agent's link, as measured by the node that holds it.",
        "The link as its node sees it.",
        200, schemas.Link, faults=(409, *KNOWN), needs=(Verb.VIEW,),
    ),
    Operation(
        "delete", "/v1/agents/{agent}/link", "disconnectAgent",
        "Close the agent's link. The agent connects again, and its commands continue.",
        "The node that holds the link was told to close it.",
        202, schemas.DisconnectedAgent, faults=(409, *KNOWN), needs=(Verb.DISCONNECT,),
    ),
    *EVENT_OPERATIONS,
    Operation(
        "get", "/v1/links", "rankLinks", "Get the worst links of the fleet by a measure, as ranked by their nodes.",
        "The worst links, and the nodes that did not answer in time.",
        200, schemas.LinkRanking, faults=LATER, needs=(Verb.VIEW,),
        params=(
            Param(
                "by", "What to rank by: the p99 of a latency, or a number.",
                {**TEXT, "enum": list(MEASURES), "default": "rtt"},
            ),
            Param(
                "limit", "Maximum number of links.",
                {"type": "integer", "minimum": 1, "maximum": MAX_LINKS, "default": 20},
            ),
        ),
    ),
    Operation(
        "get", "/v1/methods", "listMethods",
        "List the built-in methods of agents with the JSON Schemas of what they take and return. Agents may have "
        "switched some off, and have others.",
        "All methods of the library, ordered by name.", 200, node_schemas.MethodList, faults=LATER, needs=(),
    ),
    Operation(
        "get", "/v1/nodes", "listNodes", "List the nodes of the fleet with their load, as each reported it last.",
        "All nodes that reported within the last 150 seconds, ordered by name.",
        200, node_schemas.NodeList, faults=LATER, needs=(Verb.NODES,),
        params=(
            Param(
                "state", "Only nodes in this state.",
                {**TEXT, "enum": [state.value for state in node_schemas.NodeState]},
            ),
        ),
    ),
    Operation(
        "get", "/v1/tokens", "listTokens", "List all service tokens, without their secrets.", "All service tokens.",
        200, access_schemas.ServiceTokenList, faults=LATER, needs=(Verb.TOKENS,),
    ),
    Operation(
        "post", "/v1/tokens", "createToken",
        "Create a service token. Its name decides which roles it has: those that the file of roles binds to the name.",
        "The token with its text, which is shown only now.",
        201, access_schemas.CreatedServiceToken, takes=access_schemas.NewServiceToken, faults=(400, 413, *LATER),
        needs=(Verb.TOKENS,),
    ),
    Operation(
        "delete", "/v1/tokens/{token}", "revokeToken",
        "Revoke a service token. Every node refuses it within 5 seconds, and ends its streams.",
        "The token is revoked.", 204, None, faults=KNOWN, needs=(Verb.TOKENS,),
    ),
    Operation(
        "get", "/v1/enrolment-tokens", "listEnrolmentTokens", "List all enrolment tokens, without their secrets.",
        "All enrolment tokens.",
        200, access_schemas.EnrolmentTokenList, faults=LATER, needs=(Verb.ENROLMENT,),
    ),
    Operation(
        "post", "/v1/enrolment-tokens", "createEnrolmentToken",
        "Create an enrolment token, with which new agents get their first credential.",
        "The token with its text, which is shown only now.",
        201, access_schemas.CreatedEnrolmentToken, takes=access_schemas.NewEnrolmentToken,
        faults=(400, 413, *LATER), needs=(Verb.ENROLMENT,),
    ),
    Operation(
        "delete", "/v1/enrolment-tokens/{token}", "revokeEnrolmentToken",
        "Revoke an enrolment token: it enrols nobody any more. Agents that it has enrolled stay, unless "
        "`agents` is set.",
        "The token is revoked.", 204, None, faults=KNOWN, needs=(Verb.ENROLMENT,),
        params=(Param("agents", "Revoke the keys of all agents that it has enrolled, too.", FLAG),),
    ),
    Operation(
        "get", "/v1/pending-agents", "listPendingAgents",
        "List the agents that want to enrol and wait for an administrator.", "All agents that wait.",
        200, access_schemas.PendingAgentList, faults=LATER, needs=(Verb.ENROLMENT,),
    ),
    Operation(
        "post", "/v1/pending-agents/{agent}/approval", "approveAgent",
        "Approve the enrolment of an agent with a key: it gets its credential when it asks again.",
        "The enrolment is approved.", 204, None, takes=access_schemas.ShownKey, faults=(400, 413, *KNOWN),
        needs=(Verb.ENROLMENT,),
    ),
    Operation(
        "post", "/v1/pending-agents/{agent}/denial", "denyAgent",
        "Deny the enrolment of an agent with a key. It is refused for a day.",
        "The enrolment is denied.", 204, None, takes=access_schemas.ShownKey, faults=(400, 413, *KNOWN),
        needs=(Verb.ENROLMENT,),
    ),
    Operation(
        "get", "/v1/approvals", "listApprovals",
        "List the requests for an approval that the caller has made or may decide.", "All of them.",
        200, access_schemas.ApprovalList, faults=LATER, needs=(Verb.RUN, Verb.APPROVE),
    ),
    Operation(
        "get", "/v1/approvals/{approval}", "getApproval", "A request for an approval.",
        "What was asked for and what was decided.", 200, access_schemas.Approval, faults=KNOWN,
        needs=(Verb.RUN, Verb.APPROVE),
    ),
    Operation(
        "post", "/v1/approvals/{approval}/approve", "approveRequest",
        "Approve a request of another person. Whoever has asked may then start it, once, before it expires.",
        "The request is approved.", 204, None, faults=KNOWN, needs=(Verb.APPROVE,),
    ),
    Operation(
        "post", "/v1/approvals/{approval}/deny", "denyRequest", "Deny a request of another person.",
        "The request is denied.", 204, None, faults=KNOWN, needs=(Verb.APPROVE,),
    ),
    Operation(
        "delete", "/v1/agents/{agent}/key", "releaseAgent",
        "Release the id of an agent from its key, so that another key may enrol with the id. Links that are open stay.",
        "The id is released.", 204, None, faults=KNOWN, needs=(Verb.ENROLMENT,),
    ),
    Operation(
        "post", "/v1/agents/{agent}/key/revocation", "revokeAgentKey",
        "Revoke the key of an agent: every node closes its link with 4504 within 5 seconds and refuses the key. Nobody "
        "has the id until it is released.",
        "The key is revoked.",
        200, access_schemas.RevokedAgentKey, faults=KNOWN, needs=(Verb.ENROLMENT,),
    ),
    Operation(
        "get", "/v1/tenants", "listTenants", "List the tenants with what each has of its quotas.", "All tenants.",
        200, access_schemas.TenantList, faults=LATER, needs=(Verb.TENANTS,),
    ),
    Operation(
        "get", "/v1/auth/whoami", "whoami", "Get who the caller is, and which roles it has.", "The caller.",
        200, access_schemas.Caller, needs=None,
    ),
    Operation(
        "get", "/v1/auth/can-i", "canI",
        "Ask whether the caller may run a method, or use a verb: on one agent, on all agents that match a selector, or "
        "without either on every agent.",
        "The answer, with the rules that allow it on some agents.",
        200, access_schemas.Permission, faults=LATER, needs=None,
        params=(
            Param("method", "A method of agents; give it or `verb`.", {**TEXT, "maxLength": 64}),
            Param("verb", "A verb of rules.", {**TEXT, "enum": [verb.value for verb in Verb if verb is not Verb.RUN]}),
            Param("agent", "The id of an agent.", {**TEXT, "maxLength": 128}),
            Param("selector", "A selector as in a rule: a bare key is a label.", {**TEXT, "maxLength": 1024}),
        ),
    ),
    Operation("get", "/v1/openapi.json", "getOpenapi", "Get this document.", "This document.", 200, dict),
)  # fmt: skip
