"""The arguments of built-in methods are checked before a command, a run or a schedule is stored."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.agent.hosted_agents import HostedAgents
from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent
from support.waiting import until

WRONG: list[tuple[str, Any, str, str]] = [
    ("exec", {}, "payload.argv", "missing argument argv: expected a list of strings, at least 1 (the program"),
    ("exec", {"argv": "true"}, "payload.argv", 'invalid argument argv "true": expected a list of strings'),
    ("exec", ["true"], "payload", 'invalid payload ["true"]: expected an object with argv, [env], [cwd], [stdin]'),
    ("log.tail", {"path": "/a", "lines": "5"}, "payload.lines", "expected a whole number >= 0 and <= 10000 (how many"),
    ("log.tail", {"path": "var"}, "payload.path", 'invalid argument path "var": expected a string (an absolute path)'),
    ("proc.signal", {"pid": 5, "signal": "STOPP"}, "payload.signal", "expected CONT or HUP or INT or KILL or QUIT"),
    ("service.stop", {"unit": "a b"}, "payload.unit", "expected a string (the name of a unit, such as nginx.service)"),
]


@pytest.fixture
async def hosted() -> AsyncIterator[HostedAgents]:
    made = HostedAgents()
    yield made
    await made.stop()


def bodies(agent: str, **what: object) -> list[tuple[str, dict[str, Any]]]:
    """A request of each operation that takes a payload."""
    return [
        ("/v1/commands", {"agent": agent, **what}),
        ("/v1/runs", {"agents": [agent], **what}),
        ("/v1/schedules", {"name": "n", "cron": "0 0 1 1 *", "run": {"selector": "label.no=agent", **what}}),
    ]


async def test_an_empty_body_and_the_id_of_a_schedule_are_called_so(api: GatewayApi) -> None:
    for path in ("/v1/commands", f"/v1/runs/{uuid.uuid4()}/retry"):
        told = (await api.http.post(path)).json()
        assert (told["code"], told["detail"]) == (
            "malformed_body", "the body is empty: expected a JSON object, `{}` if there is nothing to say"
        )  # fmt: skip
    answer = await api.http.delete("/v1/schedules/nightly")
    told = answer.json()
    assert (answer.status_code, told["field"]) == (422, "schedule")
    assert told["detail"] == "invalid schedule id 'nightly': expected a UUID"


@pytest.mark.parametrize(("method", "payload", "field", "said"), WRONG)
async def test_wrong_arguments_are_refused_with_what_was_expected(
    api: GatewayApi, dial: DialAgent, gateway: GatewayProcess, method: str, payload: object, field: str, said: str
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    for path, body in bodies(peer.agent, method=method, payload=payload):
        answer = await api.http.post(path, json=body)
        told = answer.json()
        assert (answer.status_code, told["code"], told["field"]) == (422, "invalid_request", field), (path, told)
        assert told["detail"].startswith(f"{method}: ")
        assert said in told["detail"]
        assert f"see `fairlead methods show {method}`" in told["detail"]
    assert (await api.http.get("/v1/schedules")).json()["schedules"] == []
    probe = await api.start(peer.agent, "work")
    assert (await peer.command()).id == probe, "nothing else has reached the agent"


@pytest.mark.parametrize("payload", ["1e999", "9" * 5_000, "[1, -1e999]", "[" * 300 + "9" * 5_000 + "]" * 300])
async def test_a_number_that_is_no_double_is_explained_and_breaks_nothing(
    api: GatewayApi, dial: DialAgent, gateway: GatewayProcess, payload: str
) -> None:
    """With an escape in the body, all of it is read once more, for members that are given twice."""
    peer = await dial(gateway)
    await peer.greet()
    for lane in ("bulk", "b\\u0075lk"):
        more = f'"method": "METHOD", "lane": "{lane}", "payload": {payload}'
        texts = {
            "/v1/commands": f'{{"agent": "{peer.agent}", {more}}}',
            "/v1/runs": f'{{"agents": ["{peer.agent}"], {more}}}',
            "/v1/schedules": f'{{"name": "n", "cron": "0 0 1 1 *", "run": {{"selector": "*", {more}}}}}',
        }
        for path, text in texts.items():
            refused = await api.http.post(path, content=text.replace("METHOD", "exec"))
            assert (refused.status_code, refused.json()["field"]) == (422, "payload"), (path, refused.text)
            taken = await api.http.post(path, content=text.replace("METHOD", "work"))
            assert taken.status_code in (201, 202), (path, taken.text)
            if path != "/v1/schedules":
                assert (await peer.command()).payload == payload.encode(), "passed on byte for byte"
            else:
                await api.http.delete(f"/v1/schedules/{taken.json()['id']}")


async def test_an_agent_that_is_newer_gets_arguments_that_are_unknown_here(
    api: GatewayApi, dial: DialAgent, gateway: GatewayProcess
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    payload = {"argv": ["true"], "nice": 5}
    command = await api.start(peer.agent, "exec", payload=payload)
    received = await peer.command()
    assert (received.id, bytes(received.payload)) == (command, b'{"argv":["true"],"nice":5}')


async def test_what_is_unchecked_or_no_built_in_method_takes_anything(
    gateway: GatewayProcess, api: GatewayApi, hosted: HostedAgents
) -> None:
    async def anything(argv: int) -> int:
        return argv

    hosted.connect(gateway.link, "own-methods", {"exec": anything, "backup.start": anything})
    await until(lambda: online(api))
    own = await api.start("own-methods", "backup.start", payload={"argv": 5})
    unchecked = await api.start("own-methods", "exec", payload={"argv": 6}, unchecked=True)
    assert [(await api.end(command))["payload"] for command in (own, unchecked)] == [5, 6]
    for path, body in bodies("own-methods", method="exec", payload={"argv": 7}, unchecked=True)[1:]:
        assert (await api.http.post(path, json=body)).status_code in (201, 202)


async def online(api: GatewayApi) -> bool:
    answer = await api.http.get("/v1/agents/own-methods")
    return bool(answer.status_code == 200 and answer.json()["state"] == "online")


async def test_unchecked_is_no_part_of_what_an_idempotency_key_is_bound_to(
    api: GatewayApi, dial: DialAgent, gateway: GatewayProcess
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    for path, body in bodies(peer.agent, method="exec", payload={"argv": ["true"]})[:2]:
        key = {"idempotency-key": f"unchecked-{path}"}
        first = await api.http.post(path, json=body, headers=key)
        again = await api.http.post(path, json={**body, "unchecked": True}, headers=key)
        assert (first.status_code, again.status_code) == (202, 202)
        assert again.json()["id"] == first.json()["id"]
        assert again.headers["idempotency-replayed"] == "true"


async def test_a_method_does_not_wait_for_a_content_that_nothing_names(
    api: GatewayApi, dial: DialAgent, gateway: GatewayProcess
) -> None:
    """An agent would ask for it until the deadline of the command."""
    peer = await dial(gateway)
    await peer.greet()
    asking, waiting = {"path": "/a", "content": True, "sha256": "0" * 64}, {"path": "/a"}
    for payload, said in ((asking, "`content` is true"), (waiting, "file.put needs an input, and a run has none")):
        for path, body in bodies(peer.agent, method="file.put", payload=payload)[payload is waiting :]:
            answer = await api.http.post(path, json=body)
            told = answer.json()
            assert (answer.status_code, told["code"], told["field"]) == (422, "invalid_request", "content"), told
            assert said in told["detail"]
    for passed in (waiting, {**asking, "content": False}):  # the caller is about to send the input
        command = await api.start(peer.agent, "file.put", payload=passed)
        assert (await peer.command()).id == command


async def test_a_dry_run_asks_about_agents_and_needs_no_arguments(
    api: GatewayApi, dial: DialAgent, gateway: GatewayProcess
) -> None:
    peer = await dial(gateway)
    await peer.greet()
    answer = await api.http.post("/v1/runs", json={"method": "exec", "agents": [peer.agent], "dry_run": True})
    assert (answer.status_code, answer.json()["targets"]) == (200, 1)
