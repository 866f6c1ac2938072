"""What the programs that an agent starts get from it and can see of it: environment, signals, its secrets in /proc."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.agent.builtin.process.environment import inherited_environment

from support.agent.fixtures import StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.agent.scripted_link import TIMEOUT, Link

SECRET = "a-token-that-nobody-may-see"
PASSWORD = "proxy-password"


async def output(link: Link, id: str, *argv: str, method: str = "exec", **more: object) -> str:
    await link.command(id, method, {"argv": argv, **more})
    end = await link.end(id)
    assert end.state == "ok", end
    return link.output(id, "pty" if method == "shell" else "stdout").decode()


class RunAgent(Protocol):
    def __call__(self, url: str, *flags: str, **variables: str) -> subprocess.Popen[bytes]: ...


@pytest.fixture
def run_agent(tmp_path: Path) -> Iterator[RunAgent]:
    """Start `fairlead agent run` as it is started on a host, with these variables."""
    started: list[subprocess.Popen[bytes]] = []

    def start(url: str, *flags: str, **variables: str) -> subprocess.Popen[bytes]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", "agent", "run", "--url", url, "--id", "edge-1", *flags],
            env=clean | {"FAIRLEAD_AGENT_CONFIG": os.devnull} | variables, stdin=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(TIMEOUT)


# -- environment -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["exec", "shell"])
async def test_programs_get_the_environment_of_a_login_without_secrets(
    gateway: Gateway, run_agent: RunAgent, method: str
) -> None:
    secret = {"FAIRLEAD_AGENT_TOKEN": SECRET, "HTTPS_PROXY": f"http://u:{PASSWORD}@127.0.0.1:9", "AWS_SECRET_KEY": "s"}
    run_agent(gateway.url, **secret, LC_ALL="C.UTF-8", TZ="Asia/Tokyo", JAVA_HOME="/jdk", LD_LIBRARY_PATH="/nowhere",
              FAIRLEAD_AGENT_ENV_KEEP="JAVA_HOME")  # fmt: skip
    link = await gateway.linked()
    lines = (await output(link, "c", "env", method=method)).splitlines()
    seen = dict(line.partition("=")[::2] for line in lines)
    assert (seen["LC_ALL"], seen["TZ"], seen["JAVA_HOME"]) == ("C.UTF-8", "Asia/Tokyo", "/jdk")
    assert seen["PATH"] == os.environ["PATH"]
    assert not seen.keys() & {*secret, "LD_LIBRARY_PATH", "FAIRLEAD_AGENT_CONFIG", "FAIRLEAD_AGENT_ENV_KEEP"}
    assert {name for name in seen if name.startswith("FAIRLEAD_")} == {"FAIRLEAD_COMMAND"}


names = st.one_of(st.sampled_from(["PATH", "HOME", "LC_TIME", "FAIRLEAD_X", "SECRET", "OTHER"]), st.text(min_size=1))


@given(st.dictionaries(names, st.text()), st.lists(names))
def test_only_variables_named_in_env_keep_are_inherited(environment: dict[str, str], keep: list[str]) -> None:
    got = inherited_environment(environment, keep)
    assert "PATH" in got
    assert "SECRET" not in got or "SECRET" in keep
    assert not [name for name in got if name.startswith("FAIRLEAD_")]
    assert {name: got[name] for name in got.keys() & environment.keys()} == {
        name: environment[name] for name in got.keys() & environment.keys()
    }


# -- what /proc shows ------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["variable", "flag", "flag="])
async def test_the_token_is_not_visible_in_proc(gateway: Gateway, run_agent: RunAgent, by: str) -> None:
    """This test may be root, so nothing but their absence keeps it from reading them."""
    flags = {"variable": [], "flag": ["--token", SECRET], "flag=": [f"--token={SECRET}"]}[by]
    more = {"FAIRLEAD_AGENT_TOKEN": SECRET} if by == "variable" else {}
    run_agent(gateway.url, *flags, **more, HTTPS_PROXY=f"http://u:{PASSWORD}@127.0.0.1:9", TZ="Asia/Tokyo")
    link = await gateway.linked()
    assert gateway.requests[0].headers["Authorization"] == f"Bearer {SECRET}"
    look = "tr '\\0' '\\n' < /proc/$PPID/environ; tr '\\0' ' ' < /proc/$PPID/cmdline"
    shown = await output(link, "c", "sh", "-c", look)
    assert "agent run --url" in shown
    if os.geteuid() == 0:
        assert "TZ=Asia/Tokyo" in shown, "what is no secret is not touched"
    assert SECRET not in shown
    assert PASSWORD not in shown
    await link.command("p", "proc.list")
    await link.end("p")
    assert SECRET not in json.dumps(link.rows("p"))
    await link.cut()
    await gateway.linked()
    assert gateway.requests[1].headers["Authorization"] == f"Bearer {SECRET}", "the agent still knows it"


UNPRIVILEGED = """
import ctypes, os, sys
from fairlead.agent.builtin import builtin_agent
from fairlead.agent.host.process_secrets import PR_SET_DUMPABLE, hide_secrets
agent = builtin_agent(sys.argv[1], "edge-1", "token-1")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # as after an exec: a change of the user has closed it already
if sys.argv[2] == "concealed":
    hide_secrets({"token-1"})
agent.run()
"""


@pytest.mark.parametrize("how", ["concealed", "open"])
async def test_a_program_of_the_same_user_cannot_read_the_agents_memory(
    gateway: Gateway, agent_process: StartAgentProcess, how: str
) -> None:
    """The second time nothing was concealed: that it can look then shows that the first time it was kept from it."""
    process = agent_process("-c", UNPRIVILEGED, gateway.url, how)
    link = await gateway.linked()
    for file in ("environ", "maps"):
        await link.command(file, "exec", {"argv": ["head", "-c", "1", f"/proc/{process.pid}/{file}"]})
        assert json.loads((await link.end(file)).payload) == {"exit_code": int(how == "concealed")}, file
        assert (b"Permission denied" in link.output(file, "stderr")) == (how == "concealed")
    await link.command("fd", "exec", {"argv": ["ls", f"/proc/{process.pid}/fd/"]})
    assert (json.loads((await link.end("fd")).payload) == {"exit_code": 0}) == (how == "open")
    assert int(await output(link, "own", "sh", "-c", "wc -c < /proc/$$/environ")) > 0, "its own it may"
    await link.command("p", "proc.list")
    await link.end("p")
    user = pwd.getpwuid(psutil.Process(process.pid).uids().effective).pw_name
    assert [row["user"] for row in link.rows("p") if row["pid"] == process.pid] == [user]


# -- signals ---------------------------------------------------------------------------------------


IGNORING = """
import signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
from fairlead.agent.builtin import builtin_agent
builtin_agent(sys.argv[1], "edge-1", "token-1").run()
"""


async def test_programs_do_not_inherit_ignored_signals(gateway: Gateway, agent_process: StartAgentProcess) -> None:
    """As nohup, or a script's `&`, starts it: the agent itself goes on ignoring the hangup.

    Only signals that a program can set are judged. The C library keeps two for itself (32 and 33 with glibc) and
    refuses to change them: if whoever starts the tests ignores one of them, so does every program below.
    """
    process = agent_process("-c", IGNORING, gateway.url)
    link = await gateway.linked()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
        await link.command(f"c{number}", "exec", {"argv": ["sh", "-c", f"kill -{number:d} $$; echo lived"]})
        assert json.loads((await link.end(f"c{number}")).payload) == {"signal": number}
    for method in ("exec", "shell"):
        status = await output(link, method, "grep", "SigIgn", "/proc/self/status", method=method)
        ignored = int(status.split()[1], 16)
        assert not [number for number in signal.valid_signals() if ignored >> (number - 1) & 1]
    process.signal(signal.SIGHUP)
    await asyncio.sleep(0)
    assert (await output(link, "after", "echo", "still", "here")).strip() == "still here"
