"""Every operation of the API is in the document and accepts only the document's query parameters."""

from __future__ import annotations

import pytest

from support.gateway.platform_api import GatewayApi


def concrete(path: str) -> str:
    return path.replace("{command}", "01890a5d-ac96-774b-bcce-b302099a8057").replace("{agent}", "a")


async def test_the_document_has_every_route(api: GatewayApi) -> None:
    answer = await api.http.get("/v1/openapi.json")
    document = answer.json()
    assert document["openapi"] == "3.1.0"
    for path, operations in document["paths"].items():
        known = {method.upper() for method in operations}
        refused = await api.http.request("TRACE", concrete(path))
        assert set(refused.headers["allow"].split(", ")) == known, path


async def test_unknown_query_parameters_are_refused(api: GatewayApi) -> None:
    document = (await api.http.get("/v1/openapi.json")).json()
    played = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            known = [param["name"] for param in operation["parameters"] if param["in"] == "query"]
            answer = await api.http.request(method, concrete(path), params={"lable": "x"})
            problem = answer.json()
            assert (answer.status_code, problem["code"], problem["field"]) == (422, "invalid_request", "lable"), path
            expected = ", ".join(known) or "no query parameter"
            what = f"{method.upper()} {path}"
            assert problem["detail"] == f"unknown query parameter 'lable' of {what}: expected {expected}"
            played += 1
    assert played >= 12


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        (
            "selecter=os%3Dlinux",
            "'selecter' of GET /v1/agents: expected selector, state, limit, cursor",
        ),
        (
            "limit=1&Limit=1",
            "'Limit' of GET /v1/agents: expected selector, state, limit, cursor",
        ),
        ("selector=a&selector=b", "query parameter selector of GET /v1/agents is given 2 times: give it once"),
        ("%ff=1", "unknown query parameter"),
        ("=", "unknown query parameter ''"),
    ],
)
async def test_a_misspelt_filter_is_refused(api: GatewayApi, query: str, detail: str) -> None:
    answer = await api.http.get(f"/v1/agents?{query}")
    assert (answer.status_code, detail in answer.json()["detail"]) == (422, True), answer.text


COMMAND = "/v1/commands/01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.mark.parametrize(
    ("method", "path", "query", "detail"),
    [
        ("GET", "/v1/agents", "limit=0", "invalid limit '0': expected a whole number from 1 to 1000"),
        ("GET", "/v1/agents", "limit=1001", "invalid limit '1001': expected a whole number from 1 to 1000"),
        ("GET", "/v1/agents", "limit=٣", "expected a whole number"),
        ("GET", "/v1/agents", "state=asleep", "invalid state 'asleep': expected one of online, away, offline"),
        ("GET", "/v1/agents", "cursor=x", "invalid cursor 'x': expected the cursor of the page before"),
        ("GET", "/v1/agents", "cursor=64:", "invalid cursor '64:'"),
        ("GET", "/v1/agents", "cursor=-1:a", "invalid cursor '-1:a'"),
        ("GET", "/v1/agents", "cursor=0:a b", "invalid agent id 'a b'"),
        ("GET", "/v1/agents", "selector=os linux", "at position"),
        ("GET", "/v1/links", "by=charm", "invalid by 'charm': expected one of rtt, deliver,"),
        ("GET", "/v1/links", "limit=101", "invalid limit '101': expected a whole number from 1 to 100"),
        ("GET", f"{COMMAND}/results", "from=-1", "invalid from '-1': expected a whole number from 0 to"),
        ("GET", f"{COMMAND}/results", "from=1e3", "invalid from '1e3': expected a whole number from 0 to"),
        ("GET", f"{COMMAND}/results", "follow=maybe", "invalid follow 'maybe': expected true or false"),
        ("GET", f"{COMMAND}/results", "follow=", "invalid follow '': expected true or false"),
        ("GET", f"{COMMAND}/results", "follow=1", "invalid follow '1': expected true or false"),
        ("POST", f"{COMMAND}/input", "n=-1", "invalid n '-1': expected a whole number from 0 to"),
        ("POST", f"{COMMAND}/input", "end=2", "invalid end '2': expected true or false"),
    ],
)
async def test_an_invalid_parameter_is_refused_with_what_is_expected(
    api: GatewayApi, method: str, path: str, query: str, detail: str
) -> None:
    name, _, value = query.partition("=")
    answer = await api.http.request(method, path, params={name: value})
    assert (answer.status_code, detail in answer.json()["detail"]) == (422, True), answer.text
