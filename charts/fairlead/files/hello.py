"""What `helm test` runs in the gateway's image: one agent, one command, through the Services like everybody else.

The agent dials LINK_URL and enrols as every agent does, with a token that PLATFORM_TOKEN makes for it; only a gateway
that enrols nobody gets AGENT_TOKEN. The command is posted at API_URL with PLATFORM_TOKEN. Both may meet different pods,
so the way over Redis is played too. At the end the agent is deleted from the fleet's list, and its id released from its
key; the id stays the same, so that tests which were interrupted leave one agent behind and not one each.
"""

import asyncio
import json
import os
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request

from fairlead.agent import Agent
from fairlead.agent.identity import AgentIdentity
from fairlead.errors import FairleadError, Unavailable

AGENT = "helm-test"
READY_TIMEOUT = 90.0
"""Seconds for a gateway that was just installed: image, start, first heartbeat."""
LEAVE_TIMEOUT = 20.0
"""Seconds until all nodes know that the link is gone."""
STEP = 1.0
TIMEOUT = 40.0
"""Seconds of silence from the API; the command itself has 30, and the stream shows a sign of life between."""


def order(method: str, path: str, body: object = None) -> urllib.request.Request:
    """A request to the API."""
    headers = {
        "Authorization": f"Bearer {os.environ['PLATFORM_TOKEN']}",
        "Content-Type": "application/json",
        "Accept": "application/x-ndjson",
    }
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(f"{os.environ['API_URL']}{path}", data, headers, method=method)


def admit(deadline: float) -> str:
    """A token with which the agent enrols; "" if this gateway enrols nobody. Raises Unavailable."""
    again = "the API has not been asked"
    while time.monotonic() < deadline:
        try:
            release()
            wanted = {"agents": AGENT, "uses": 1, "lifetime": 300}
            with urllib.request.urlopen(order("POST", "/v1/enrolment-tokens", wanted), timeout=TIMEOUT) as answer:
                return str(json.load(answer)["token"])
        except urllib.error.HTTPError as e:
            detail = e.read(1000).decode(errors="replace")
            if "enrols no agents" in detail:
                return ""
            again = f"the API answered {e.code}: {detail}"
        except (OSError, ValueError) as e:
            again = f"the API at {os.environ['API_URL']} does not answer: {e}"
        print(f"not yet: {again}", flush=True)
        time.sleep(STEP)
    raise Unavailable(again)


def release() -> None:
    """Let another key have the agent's id."""
    try:
        urllib.request.urlopen(order("DELETE", f"/v1/agents/{AGENT}/key"), timeout=STEP * 5).close()
    except urllib.error.HTTPError as e:
        if e.code != 404:  # no key has it
            raise


def post() -> str:
    """Run the command; what the agent answered. Raises Unavailable with what stood in the way."""
    command = {"agent": AGENT, "method": "hello", "payload": {}, "deadline": 30}
    try:
        with urllib.request.urlopen(order("POST", "/v1/commands", command), timeout=TIMEOUT) as answer:
            for line in map(json.loads, answer):
                if end := line.get("end"):
                    if end["state"] == "ok":
                        return str(end["payload"])
                    raise Unavailable(f"the command ended as {end['state']}: {end.get('error')}")
    except urllib.error.HTTPError as e:
        raise Unavailable(f"the API answered {e.code}: {e.read(1000).decode(errors='replace')}") from e
    except (OSError, ValueError) as e:
        raise Unavailable(f"the API at {os.environ['API_URL']} does not answer: {e}") from e
    raise Unavailable("the stream ended before the command did")


def ask(deadline: float) -> str:
    """Post until it goes well: the Service may have no pod yet, and the agent no link."""
    while True:
        try:
            return post()
        except Unavailable as e:
            if time.monotonic() > deadline:
                raise
            print(f"not yet: {e.message}", flush=True)
            time.sleep(STEP)


def delete(deadline: float) -> str:
    """Take the agent out of the list once its link is known to be gone; why that did not go well, "" when it did."""
    while True:
        try:
            urllib.request.urlopen(order("DELETE", f"/v1/agents/{AGENT}"), timeout=STEP * 5).close()
            release()
            return ""
        except urllib.error.HTTPError as e:
            why, again = f"the API answered {e.code}", e.code in (409, 429, 503)
        except OSError as e:
            why, again = str(e), True
        if not again or time.monotonic() > deadline:
            return why
        time.sleep(STEP)


def unverified() -> ssl.SSLContext:
    """For a gateway with `linkTls`: its certificate is for the name that agents dial, not for that of the Service."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def main() -> int:
    url = os.environ["LINK_URL"]
    token = await asyncio.to_thread(admit, time.monotonic() + READY_TIMEOUT)
    folder = tempfile.mkdtemp()
    credential = AgentIdentity(folder, token) if token else os.environ["AGENT_TOKEN"]
    agent = Agent(url, AGENT, credential, ssl=unverified() if url.startswith("wss:") else None)

    @agent.command("hello")
    async def hello() -> str:
        return "welcome"

    link = asyncio.create_task(agent.serve())
    asking = asyncio.create_task(asyncio.to_thread(ask, time.monotonic() + READY_TIMEOUT))
    await asyncio.wait({link, asking}, return_when=asyncio.FIRST_COMPLETED)
    if not asking.done():
        print(f"the link was refused: {link.exception()}", flush=True)
        os._exit(1)  # the thread that asks would otherwise run until its deadline
    agent.stop()
    await link
    answer = asking.result()
    print(f"the agent {AGENT} was welcomed at {url} and answered {answer!r}", flush=True)
    if why := await asyncio.to_thread(delete, time.monotonic() + LEAVE_TIMEOUT):
        print(f"the agent {AGENT} stays in the list of agents: {why}", flush=True)
    return 0 if answer == "welcome" else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except FairleadError as e:
        sys.exit(f"no hello through the Service: {e.message}")
