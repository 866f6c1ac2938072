"""A gateway with a file of roles, and callers with service tokens."""

from __future__ import annotations

import os
from pathlib import Path

import httpx2

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess
from support.oidc.issuer import Issuer

ROLES = """\
roles:
  deploy:
    - methods: [exec, file.*]
      agents: env=dev
    - verbs: [view, label]
      agents: env=dev
  watch:
    - verbs: [view, results, cancel]
      agents: env=dev
  look:
    - verbs: [view]
      agents: env=dev
  keys:
    - gateway: [tokens]
  enrol:
    - gateway: [enrolment]
  all:
    - methods: ["*"]
      verbs: ["*"]
      agents: "*"
  here:
    - methods: [work]
      verbs: [view]
      agents: fact.place=here
  labels:
    - verbs: [view, label]
      agents: "*"
  named:
    - methods: [work]
      ids: [named-*]
bindings:
  - {tokens: [ci, other-ci], roles: [deploy]}
  - {tokens: [watcher], roles: [watch]}
  - {tokens: [looker], roles: [look]}
  - {tokens: [keeper], roles: [keys, look]}
  - {tokens: [enroller], roles: [enrol]}
  - {tokens: [all], roles: [all]}
  - {tokens: [here], roles: [here]}
  - {tokens: [named], roles: [named]}
  - {tokens: [both], roles: [look, all]}
  - {tokens: [labeller], roles: [labels]}
  - {tokens: [climber], roles: [labels, deploy]}
"""


def people_flags(folder: Path, issuer: Issuer, roles: str) -> tuple[str, str, str, str]:
    """Write the files of roles and of issuers, `roles.yaml` and `issuers.toml`. Returns the flags that name them."""
    write_roles(folder / "roles.yaml", roles)
    file = issuer.write_file(folder / "issuers.toml")
    return "--roles", str(folder / "roles.yaml"), "--issuers", str(file)


def write_roles(path: Path, text: str = ROLES) -> None:
    """Replace the file at once, as every deployment of files does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


async def create_token(api: GatewayApi, name: str, **more: object) -> str:
    """The text of a new service token."""
    answer = await api.http.post("/v1/tokens", json={"name": name, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


async def caller_of(api_of: MakeGatewayApi, gateway: GatewayProcess, name: str, **more: object) -> GatewayApi:
    """The API as somebody with a new service token uses it."""
    return as_caller(api_of, gateway, await create_token(api_of(gateway), name, **more))


def as_caller(api_of: MakeGatewayApi, gateway: GatewayProcess, token: str) -> GatewayApi:
    api = api_of(gateway)
    api.http.headers["authorization"] = f"Bearer {token}"
    return api


def denied(answer: httpx2.Response) -> str:
    """What a refusal says."""
    assert answer.status_code == 403, answer.text
    assert answer.json()["code"] == "permission_denied"
    return str(answer.json()["detail"])
