"""Every operation of the API is in the document and accepts only the document's query parameters."""

from __future__ import annotations

import pytest

from support.gateway.platform_api import Api


def concrete(path: str) -> str:
    return path.replace("{command}", "01890a5d-ac96-774b-bcce-b302099a8057").replace("{agent}", "a")


async def test_the_document_knows_every_route(api: Api) -> None:
    answer = await api.http.get("/v1/openapi.json")
    document = answer.json()
    assert document["openapi"] == "3.1.0"
    for path, operations in document["paths"].items():
        known = {method.upper() for method in operations}
        refused = await api.http.request("TRACE", concrete(path))
        assert set(refused.headers["allow"].split(", ")) == known, path


async def test_no_operation_takes_a_query_parameter_that_it_does_not_know(api: Api) -> None:
    document = (await api.http.get("/v1/openapi.json")).json()
    played = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            known = [param["name"] for param in operation["parameters"] if param["in"] == "query"]
            answer = await api.http.request(method, concrete(path), params={"lable": "x"})
            problem = answer.json()
            assert (answer.status_code, problem["code"], problem["field"]) == (422, "invalid_request", "lable"), path
            only = f"only {', '.join(known)}" if known else "none"
            assert problem["detail"] == f"{method.upper()} {path} takes no query parameter 'lable', {only}"
            played += 1
    assert played >= 12


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selecter=os%3Dlinux", "takes no query parameter 'selecter', only selector, state, limit, cursor"),
        ("limit=1&Limit=1", "takes no query parameter 'Limit', only selector, state, limit, cursor"),
        ("selector=a&selector=b", "takes one selector, not 2"),
        ("%ff=1", "takes no query parameter"),
        ("=", "takes no query parameter ''"),
    ],
)
async def test_a_filter_that_is_misspelt_is_no_silent_nothing(api: Api, query: str, said: str) -> None:
    answer = await api.http.get(f"/v1/agents?{query}")
    assert (answer.status_code, said in answer.json()["detail"]) == (422, True), answer.text


COMMAND = "/v1/commands/01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.mark.parametrize(
    ("method", "path", "query", "said"),
    [
        ("GET", "/v1/agents", "limit=0", "limit='0' is not a whole number from 1 to 1000"),
        ("GET", "/v1/agents", "limit=1001", "limit='1001' is not a whole number from 1 to 1000"),
        ("GET", "/v1/agents", "limit=٣", "is not a whole number"),
        ("GET", "/v1/agents", "state=asleep", "state 'asleep' is not one of online, away, offline"),
        ("GET", "/v1/agents", "cursor=x", "cursor 'x' is malformed: begin again without one"),
        ("GET", "/v1/agents", "cursor=64:", "cursor '64:' is malformed"),
        ("GET", "/v1/agents", "cursor=-1:a", "cursor '-1:a' is malformed"),
        ("GET", "/v1/agents", "cursor=0:a b", "agent id 'a b' is not legal"),
        ("GET", "/v1/agents", "selector=os>linux", "is not understood from position"),
        ("GET", "/v1/links", "by=charm", "by='charm' is not one of rtt, deliver,"),
        ("GET", "/v1/links", "limit=101", "limit='101' is not a whole number from 1 to 100"),
        ("GET", f"{COMMAND}/results", "from=-1", "from='-1' is not a whole number from 0 to"),
        ("GET", f"{COMMAND}/results", "from=1e3", "from='1e3' is not a whole number from 0 to"),
        ("GET", f"{COMMAND}/results", "follow=maybe", "follow='maybe' is neither true nor false"),
        ("POST", f"{COMMAND}/input", "n=-1", "n='-1' is not a whole number from 0 to"),
        ("POST", f"{COMMAND}/input", "end=2", "end='2' is neither true nor false"),
    ],
)
async def test_a_value_that_cannot_be_is_told_with_what_can(
    api: Api, method: str, path: str, query: str, said: str
) -> None:
    name, _, value = query.partition("=")
    answer = await api.http.request(method, path, params={name: value})
    assert (answer.status_code, said in answer.json()["detail"]) == (422, True), answer.text
