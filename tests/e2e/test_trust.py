"""Identity, rights and evidence on a real cluster: agents enrol through the Ingress over TLS, a person logs in at Dex
and may do what the role says, a revoked agent is gone from every pod while commands run, and the audit logs verify.

`make e2e` plays it after the story, with a release of its own. Dex runs on the machine, where pods reach it as they
answer whoever calls them from there. Skipped where Dex is not built (`make dex`).
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.release import RELEASE, Release, is_ready, name
from support.kube import INGRESS, Kube, behind, find
from support.oidc.dex import CLIENT, USER, Dex, enter_code, program
from support.outside_agents import FAIRLEAD, OutsidePlatform
from support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
NAMESPACE, HOST = "fairlead-e2e-trust", "trust.fairlead.test"
URL = f"wss://{HOST}:8443"
WITHIN = 5.0
"""Seconds within which every pod has closed the link of a revoked agent."""
ROLES = f"""\
roles:
  web:
    - methods: [exec]
      verbs: [view, results, cancel]
      agents: env=prod
bindings:
  - {{users: ["dex:{USER}"], roles: [web]}}
"""
VALUES: dict[str, Any] = {
    "gateways": {
        "default": {
            "capacity": 250,
            "replicas": {"min": 2, "max": 2},
            "roles": {"configMap": "roles"},
            "issuers": {"configMap": "issuers"},
            "auditLog": {"sizeLimit": "100Mi", "keySecretRef": {"name": "audit-key"}},
            "ingress": {"className": "traefik", "hosts": [HOST], "preset": "Traefik", "tls": {"secretName": "links"}},
        }
    }
}


class Fleet:
    """The release with its agents, and a person."""

    def __init__(self, release: Release, folder: Path, dex: Dex, certificate: Path) -> None:
        self.release, self.folder, self.dex, self.certificate = release, folder, dex, certificate
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.admin = OutsidePlatform(release.platform(), release.token("platform"))

    def enrol(self, agent: str, token: str) -> None:
        argv = [*FAIRLEAD, "agent", "run", "--id", agent, "--url", URL, "--identity", str(self.folder / agent)]
        with (self.folder / f"{agent}.log").open("wb") as log:
            self.agents[agent] = subprocess.Popen(
                behind(self.folder / "hosts", [HOST], *argv),
                env={
                    **os.environ, "FAIRLEAD_AGENT_ENROLMENT_TOKEN": token,
                    "FAIRLEAD_AGENT_CA_FILE": str(self.certificate),
                },
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.release.pods("gateway") if is_ready(pod)]

    def state(self, agent: str, pod: dict[str, Any]) -> str:
        """The state of an agent as this pod knows it."""
        request = urllib.request.Request(f"http://{pod['status']['podIP']}:8081/v1/agents/{agent}")
        request.add_header("authorization", f"Bearer {self.admin.token}")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
            return str(json.load(answer)["state"])

    def person(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        environment |= {"XDG_CONFIG_HOME": str(self.folder), "NO_PROXY": "*"}
        return subprocess.run(
            [*FAIRLEAD, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def log_in(self) -> None:
        where = ("--api", self.admin.address, "--issuer", self.dex.url, "--client-id", CLIENT)
        added = self.person("context", "add", "prod", *where, "--issuer-ca", str(self.certificate))
        assert added.returncode == 0, added.stderr
        assert self.person("context", "use", "prod").returncode == 0
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
        environment |= {"XDG_CONFIG_HOME": str(self.folder), "NO_PROXY": "*"}
        told = self.folder / "told"
        with told.open("wb") as sink:
            login = subprocess.Popen(
                [*FAIRLEAD, "login"], env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        try:
            page = wait_until(lambda: re.search(r"or open (\S+)\n", told.read_text()))
            assert page is not None
            enter_code(page[1], self.certificate)
            assert login.wait(60) == 0, told.read_text()
        finally:
            if login.poll() is None:
                login.kill()
                login.wait()

    def end(self) -> None:
        for agent in self.agents.values():
            agent.kill()
            agent.wait()


def own_address() -> str:
    """The address of this machine that the cluster sees."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as toward:
        toward.connect((INGRESS.partition(":")[0], 9))  # it sends nothing
        return str(toward.getsockname()[0])


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def make_files(folder: Path, dex: Dex) -> None:
    """The files of the ConfigMaps. The authority of Dex is beside the file of issuers."""
    (folder / "roles.yaml").write_text(ROLES)
    (folder / "issuers.toml").write_text(
        f'[issuers.dex]\nurl = "{dex.url}"\naudience = "{CLIENT}"\nuser_claim = "email"\n'
        'ca = "/etc/fairlead/issuers/links.pem"\n'
    )
    openssl("genpkey", "-algorithm", "ed25519", "-out", folder / "key.pem")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if os.environ.get("FAIRLEAD_E2E") != "1":
        pytest.skip("the end-to-end story is played by `make e2e`")
    binary = program()
    if binary is None:
        pytest.skip("NOT tested: Dex was not found; `make dex` builds it, DEX_BIN names its folder")
    kube = find()
    if not isinstance(kube, Kube):
        pytest.fail(kube)
    folder = tmp_path_factory.mktemp("trust")
    certificate, key = folder / "links.pem", folder / "links.key"
    address = own_address()
    names = f"subjectAltName=DNS:{HOST},IP:{address}"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={HOST}", "-addext", names, "-keyout", key, "-out", certificate)  # fmt: skip
    dex = Dex(binary, folder, host=address, certificate=(certificate, key))
    made: Fleet | None = None
    try:
        make_files(folder, dex)
        with kube.namespace(NAMESPACE) as namespace:
            release = Release(kube, namespace, folder, VALUES)
            release.kubectl("create", "secret", "tls", "links", f"--cert={certificate}", f"--key={key}")
            release.kubectl("create", "secret", "generic", "audit-key", f"--from-file={folder / 'key.pem'}")
            release.kubectl("create", "configmap", "roles", f"--from-file={folder / 'roles.yaml'}")
            release.kubectl(
                "create", "configmap", "issuers", f"--from-file={folder / 'issuers.toml'}",
                f"--from-file={certificate}",
            )  # fmt: skip
            release.install()
            release.kubectl("wait", "--for=condition=Ready", f"linkgateway/{RELEASE}", "--timeout=240s", timeout=250)
            made = Fleet(release, folder, dex, certificate)
            yield made
            made.end()
            release.helm("uninstall", RELEASE, "--wait", "--timeout", "300s")
    finally:
        if made is not None:
            made.end()
        dex.stop()


def test_1_agents_enrol_through_the_ingress_over_tls(fleet: Fleet) -> None:
    fleet.release.until("two pods that are ready", lambda: len(fleet.pods()) == 2, 120)
    fleet.release.helm("test", RELEASE, "--timeout", "240s")  # its agent enrols as well, through the Service
    made = fleet.admin.output("enrolment-tokens", "create", "trust-*", "--uses", "2", "--label", "env=prod")
    for agent in ("trust-1", "trust-2"):
        fleet.enrol(agent, made.strip())
    fleet.release.until("both agents online", lambda: all(map(fleet.admin.online, fleet.agents)), 120)
    assert fleet.admin.output("exec", "trust-1", "--", "echo", "enrolled") == "enrolled\n"


def test_2_a_person_logs_in_and_may_do_what_the_role_says_and_not_more(fleet: Fleet) -> None:
    fleet.log_in()
    who = fleet.person("auth", "whoami", "-o", "json")
    found = json.loads(who.stdout)
    assert (found["subject"], found["roles"], found["administrator"]) == (f"user:dex:{USER}", ["web"], False)
    done = fleet.person("exec", "trust-1", "--", "echo", "as the role says")
    assert done.stdout == "as the role says\n", done.stderr
    for refused in (("call", "trust-1", "sys.info"), ("tokens", "ls"), ("agents", "revoke", "trust-1")):
        denial = fleet.person(*refused)
        assert denial.returncode != 0, refused
        assert "may not use" in denial.stderr, denial.stderr


def test_3_a_revoked_agent_is_gone_from_every_pod_while_commands_run(fleet: Fleet) -> None:
    environment = {**os.environ, "FAIRLEAD_API": fleet.admin.address, "FAIRLEAD_TOKEN": fleet.admin.token}
    running = [
        subprocess.Popen(
            [*FAIRLEAD, "exec", agent, "--", "sh", "-c", "echo begun; sleep 20; echo done"], env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for agent in ("trust-1", "trust-2")
    ]  # fmt: skip
    try:
        for command in running:
            assert command.stdout is not None
            assert command.stdout.readline() == b"begun\n"
        pods = fleet.pods()
        fleet.admin.output("agents", "revoke", "trust-2")
        began = time.monotonic()
        while any(fleet.state("trust-2", pod) == "online" for pod in pods):
            assert time.monotonic() - began < WITHIN, "the link of a revoked agent is open"
            time.sleep(0.1)
        took = time.monotonic() - began
        assert fleet.agents["trust-2"].wait(60) == 3, "the agent is told, and ends"
        assert all(fleet.state("trust-1", pod) == "online" for pod in pods)
        out, error = running[0].communicate(timeout=60)
        assert (running[0].returncode, out) == (0, b"done\n"), error
    finally:
        for command in running:
            command.kill()
            command.communicate()
    print(f"\na revoked agent was gone from {len(pods)} pods after {took:.1f} s", flush=True)


def test_4_the_audit_logs_of_the_pods_verify(fleet: Fleet) -> None:
    seen = ""
    for pod in fleet.pods():
        inside = ("exec", name(pod), "-c", "gateway", "--", "fairlead", "audit")
        verified = fleet.release.kubectl(*inside, "verify", "/var/lib/fairlead/audit")
        assert re.search(rf"{re.escape(name(pod))}: lines 1 to [0-9]+ are whole", verified), verified
        seen += fleet.release.kubectl(*inside, "ls", "/var/lib/fairlead/audit", "-o", "json")
    assert f"user:dex:{USER}" in seen
    assert "denied" in seen
    assert "revokeAgentKey" in seen
