"""Lists what an image holds, as a CycloneDX 1.5 document: the distributions of this venv and the system's packages.

Run by the Dockerfile with the Python of the finished venv, so that it lists what is installed and not what was
requested. It uses only the standard library, because a tool would itself be installed and listed. Names, versions,
licences and dependencies come from the packages' own metadata; the system's packages come from dpkg, if the base image
has it.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path


def document(title: str) -> dict[str, object]:
    installed = {_key(d.metadata["Name"]): d for d in distributions()}
    own = installed["fairlead"]
    components = [_component(d) for key, d in sorted(installed.items()) if key != "fairlead"]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {**_component(own), "type": "application", "name": f"fairlead-{title}"},
            "properties": [{"name": "python", "value": platform.python_version()}],
        },
        "components": [*components, *_system()],
        "dependencies": [
            {"ref": _purl(d), "dependsOn": sorted(_purl(installed[n]) for n in _needs(d) if n in installed)}
            for _, d in sorted(installed.items())
        ],
    }


def _component(distribution: Distribution) -> dict[str, object]:
    about = distribution.metadata
    component: dict[str, object] = {
        "type": "library",
        "bom-ref": _purl(distribution),
        "name": about["Name"],
        "version": distribution.version,
        "purl": _purl(distribution),
    }
    expressions = about.get_all("License-Expression")
    if expressions:
        component["licenses"] = [{"expression": expressions[0]}]
    else:
        # Free text and classifiers are not SPDX expressions, so they are listed as names.
        named = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or [] if c.startswith("License :: ")]
        named = named or [text.splitlines()[0] for text in about.get_all("License") or [] if text.strip()]
        component["licenses"] = [{"license": {"name": name.strip()}} for name in named]
    return component


def _needs(distribution: Distribution) -> set[str]:
    """Names of the requirements. Those of extras that are not installed are dropped when they are looked up."""
    return {
        _key(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]) for requirement in distribution.requires or []
    }


def _purl(distribution: Distribution) -> str:
    return f"pkg:pypi/{_key(distribution.metadata['Name'])}@{distribution.version}"


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _system() -> list[dict[str, object]]:
    if not Path("/var/lib/dpkg/status").exists():
        return []
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    packages = [line.split("\t") for line in listed.splitlines() if line.startswith("ii")]
    return [
        {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        for _, name, version, architecture in sorted(packages)
        for purl in [f"pkg:deb/debian/{name}@{version}?arch={architecture}"]
    ]


if __name__ == "__main__":
    json.dump(document(sys.argv[1]), sys.stdout, indent=1)
