"""A gateway whose roles mark methods that a second person has to approve, and the people who ask and approve."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx2

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.roles import as_caller
from support.gateway.scripted_agent import ScriptedAgent
from support.oidc.issuer import Issuer

ROLES = """\
roles:
  work:
    - methods: [exec, "file.*", shell]
      verbs: [view, label, delete, input, results]
      agents: "*"
  typist:
    - methods: [other]
      verbs: [view, input]
      agents: "*"
  security:
    - gateway: [approve, tokens]
  everything:
    - methods: ["*"]
      verbs: ["*"]
      agents: "*"
    - gateway: [approve]
bindings:
  - {users: ["company:anna"], tokens: [ci], roles: [work]}
  - {users: ["company:bert"], tokens: [bot], roles: [security]}
  - {users: ["company:carl"], roles: [work, security]}
  - {tokens: [both, both-2], roles: [everything]}
  - {tokens: [typist], roles: [typist]}
  - {tokens: [maker, made], roles: [work, security]}
approvals:
  - methods: [exec, "file.*"]
    agents: env=prod
    approvers: [security, everything]
    expires: 1h
"""


class People:
    """Anna and carl may run things, bert and carl may approve them."""

    def __init__(self, gateway: GatewayProcess, api_of: MakeGatewayApi, issuer: Issuer) -> None:
        self.anna, self.bert, self.carl = (
            as_caller(api_of, gateway, issuer.token(sub=name)) for name in ("anna", "bert", "carl")
        )


async def prod(api: GatewayApi, agent: ScriptedAgent) -> ScriptedAgent:
    await agent.greet()
    answer = await api.http.patch(f"/v1/agents/{agent.agent}", json={"labels": {"env": "prod"}})
    assert answer.status_code == 200, answer.text
    return agent


def required(answer: httpx2.Response, state: str = "pending") -> str:
    """The id of the request for an approval."""
    assert answer.status_code == 403, answer.text
    document = answer.json()
    assert (document["code"], document["state"]) == ("approval_required", state)
    return str(document["approval"])


async def decide(api: GatewayApi, approval: str, what: str = "approve") -> httpx2.Response:
    return await api.http.post(f"/v1/approvals/{approval}/{what}")


def fairlead(gateway: GatewayProcess, token: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
    return subprocess.run(
        [sys.executable, "-P", "-m", "fairlead", *args], capture_output=True, text=True, timeout=60, check=False,
        env={**environment, "FAIRLEAD_API": gateway.api, "FAIRLEAD_TOKEN": token},
    )  # fmt: skip
