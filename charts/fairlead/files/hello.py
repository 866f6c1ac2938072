"""What `helm test` runs in the gateway's image: one agent, one command, through the Service like everybody else.

The agent dials LINK_URL and is known by AGENT_TOKEN; the command is posted at API_URL with PLATFORM_TOKEN. Both may
meet different pods, so the way over Redis is played too. The agent's id stays the same, so that tests leave one
agent behind in the fleet's memory and not one each.
"""

import asyncio
import os
import sys
import time
import uuid

from fairlead.agent import Agent
from fairlead.client import Client, End
from fairlead.errors import FairleadError, Unavailable

AGENT = "helm-test"
PATIENCE = 90.0
"""Seconds for a gateway that was just installed: image, start, first beat."""
STEP = 1.0


def ask(deadline: float) -> str:
    """Post the command until it ends well; what the agent answered. Raises what stood in the way at the deadline."""
    request = {"agent": AGENT, "method": "hello", "payload": {}, "deadline": 30}
    with Client(os.environ["API_URL"], os.environ["PLATFORM_TOKEN"]) as client:
        while True:
            try:
                with client.command(request, uuid.uuid4().hex) as lines:
                    for line in lines:
                        if isinstance(line, End) and line.state == "ok":
                            return str(line.payload)
                        if isinstance(line, End):
                            raise Unavailable(f"the command ended as {line.state}: {line.error}")
                raise Unavailable("the stream ended before the command did")
            except FairleadError as e:  # the Service has no pod yet, the agent no link yet
                if time.monotonic() > deadline:
                    raise
                print(f"not yet: {e.message}", flush=True)
                time.sleep(STEP)


async def main() -> int:
    agent = Agent(os.environ["LINK_URL"], AGENT, os.environ["AGENT_TOKEN"])

    @agent.command("hello")
    async def hello() -> str:
        return "welcome"

    link = asyncio.create_task(agent.serve())
    asking = asyncio.create_task(asyncio.to_thread(ask, time.monotonic() + PATIENCE))
    await asyncio.wait({link, asking}, return_when=asyncio.FIRST_COMPLETED)
    if not asking.done():
        print(f"the link was refused: {link.exception()}", flush=True)
        os._exit(1)  # the thread that asks would go on until its deadline
    agent.stop()
    await link
    answer = asking.result()
    print(f"the agent {AGENT} was welcomed at {os.environ['LINK_URL']} and answered {answer!r}", flush=True)
    return 0 if answer == "welcome" else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except FairleadError as e:
        sys.exit(f"no hello through the Service: {e.message}")
