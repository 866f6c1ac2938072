"""The facts that an agent reports without being asked to: they are what the host itself says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fairlead.agent.host.cloud_instance import cloud_facts
from fairlead.agent.host.facts import agent_facts, check_facts, host_facts
from fairlead.agent.host.installed_packages import package_facts
from fairlead.agent.host.network_facts import network_facts
from fairlead.errors import ConfigError


@pytest.mark.skipif(not Path("/etc/os-release").exists(), reason="this host has no os-release file")
def test_the_distribution_is_what_os_release_says() -> None:
    line = '. /etc/os-release; printf "%s\\n%s\\n" "${ID-}" "${VERSION_ID-}"'
    name, version, _ = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=True, timeout=10
    ).stdout.split("\n")
    facts = host_facts()
    assert (facts.get("os.name", ""), facts.get("os.version", "")) == (name, version)


def test_the_facts_are_those_of_the_host_and_legal() -> None:
    facts = host_facts()
    assert facts["kernel"] == os.uname().release
    assert int(facts["cpus"]) == os.cpu_count()
    assert check_facts(facts) == facts


def test_packages_are_counted_from_the_lists_of_their_managers(tmp_path: Path) -> None:
    assert package_facts(tmp_path) == {}
    (tmp_path / "var/lib/rpm").mkdir(parents=True)
    assert package_facts(tmp_path) == {"packages.manager": "rpm"}
    for name in ("one-1", "two-2"):
        (tmp_path / "var/lib/pacman/local" / name).mkdir(parents=True)
    (tmp_path / "var/lib/pacman/local/ALPM_DB_VERSION").touch()
    assert package_facts(tmp_path) == {"packages.manager": "pacman", "packages.count": "2"}
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(
        "Package: a\nStatus: install ok installed\n\nPackage: b\nStatus: deinstall ok config-files\n\n"
        "Package: c\nStatus: hold ok installed\nDescription: x\n Status: install ok installed\n"
    )
    assert package_facts(tmp_path) == {"packages.manager": "dpkg", "packages.count": "2"}


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="this host has no dpkg")
def test_the_count_is_that_of_dpkg() -> None:
    line = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}\\n"]
    said = subprocess.run(line, capture_output=True, text=True, check=True, timeout=20).stdout.split("\n")
    assert package_facts() == {"packages.manager": "dpkg", "packages.count": str(said.count("installed"))}


def test_addresses_are_those_of_the_kernel_without_what_every_host_has(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.5\n"
        "        /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\nLocal:\n     |-- 10.0.0.5\n"
        "        /32 host LOCAL\n     |-- 169.254.3.4\n        /32 host LOCAL\n     |-- 9.1.2.3\n"
        "        /32 host LOCAL\n"
    )
    (tmp_path / "if_inet6").write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe800000000000000042acfffe110002 02 40 20 80     eth0\n"
        "20010db8000000000000000000000005 02 40 00 80     eth0\nbroken\n\n"
    )
    assert network_facts(tmp_path)["net.addresses"] == "9.1.2.3,10.0.0.5,2001:db8::5"
    many = "".join(f"     |-- 10.0.{n}.1\n        /32 host LOCAL\n" for n in range(250))
    (tmp_path / "fib_trie").write_text(many)
    found = network_facts(tmp_path)["net.addresses"]
    assert len(found) <= 256
    assert found.endswith(".1")
    assert "net.addresses" not in network_facts(tmp_path / "none")


def test_a_cloud_is_known_by_its_firmware(tmp_path: Path) -> None:
    assert cloud_facts(tmp_path) == {}
    for vendor, more, expected in (
        ("Amazon EC2", {"board_asset_tag": "i-0abc", "product_name": "m5.large"},
         {"cloud.provider": "aws", "cloud.instance": "i-0abc", "cloud.type": "m5.large"}),
        ("Microsoft Corporation", {"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"},
         {"cloud.provider": "azure"}),
        ("Microsoft Corporation", {"chassis_asset_tag": "none"}, {}), ("Google", {}, {"cloud.provider": "gcp"}),
        ("Some Maker\x07", {}, {}), ("x" * 10_000, {}, {}),
    ):  # fmt: skip
        (tmp_path / "sys_vendor").write_text(f"{vendor}\n")
        for name, text in more.items():
            (tmp_path / name).write_text(f"{text}\n")
        assert cloud_facts(tmp_path) == expected, vendor


def test_what_is_collected_gives_way_to_what_the_user_says() -> None:
    given = {"net.addresses": "mine", **{f"fact-{n}": "x" * 60 for n in range(45)}}
    facts = agent_facts(given)
    assert given.items() <= facts.items()
    assert check_facts(facts) == facts
    with pytest.raises(ConfigError):
        agent_facts({f"fact-{n}": "x" * 256 for n in range(48)})
