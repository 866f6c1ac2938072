"""Plays the transcript of docs/cli.md on a real demo: `python tests/cli/transcript.py`, with --write to update it.

The commands are read from the document; only their output is produced here. Without --write it compares, and exits
with 1 when the output differs from the document. What differs from run to run (times, ids, ports, durations) is not
compared.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
BLOCK = re.compile(r"(<!-- transcript -->\n```console\n)(.*?)(```\n<!-- /transcript -->)", re.DOTALL)
VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\d+(\.\d+)? ms\b"), "N ms"),
)


@contextmanager
def demo(folder: Path) -> Iterator[tuple[list[str], str]]:
    """A demo on free ports: the addresses of its API, and one of its links."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fairlead", "demo", "--port", "0", "--data", str(folder / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean(),
    )
    assert process.stdout is not None
    try:
        shown = ""
        for line in process.stdout:
            shown += line
            if "Ctrl-C ends" in line:
                break
        api, links = re.search(r"API +(\S+)", shown), re.search(r"links +(\S+),", shown)
        assert api is not None, shown
        assert links is not None, shown
        yield api[1].split(","), links[1]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}


def play(commands: list[str]) -> str:
    """The block: each command, and what it has answered on stdout and stderr."""
    made = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shim = folder / "fairlead"
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m fairlead "$@"\n')
        shim.chmod(0o755)
        with demo(folder) as (apis, links):
            env = {
                **clean(),
                "PATH": f"{folder}:{os.environ['PATH']}",
                "FAIRLEAD_API": ",".join(apis),
                "FAIRLEAD_AGENT_URL": links,
                "TERM": "dumb",
            }
            # As it looks at the ports that the demo has without --port 0.
            usual = {api: f"http://127.0.0.1:{8081 + 3 * i}" for i, api in enumerate(apis)}
            usual[links] = "ws://127.0.0.1:8080"
            usual |= {url.rpartition(":")[2]: documented.rpartition(":")[2] for url, documented in usual.items()}
            for command in commands:
                done = subprocess.run(
                    ["bash", "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=env,
                    timeout=60,
                    text=True,
                    check=False,
                )
                answer = done.stdout.replace("\r\n", "\n")
                for found, documented in usual.items():
                    answer = answer.replace(found, documented)
                made.append(f"$ {command}\n{answer}")
    Path("/var/tmp/note.txt").unlink(missing_ok=True)
    return "".join(made)


def same(text: str) -> str:
    """What is compared."""
    for pattern, word in VARIES:
        text = pattern.sub(word, text)
    return text


def main() -> int:
    page = PAGE.read_text()
    found = BLOCK.search(page)
    assert found is not None, f"{PAGE} has no transcript"
    made = play([line[2:] for line in found[2].splitlines() if line.startswith("$ ")])
    if "--write" in sys.argv:
        PAGE.write_text(page[: found.start(2)] + made + page[found.end(2) :])
        return 0
    if same(made) == same(found[2]):
        return 0
    print(f"--- {PAGE.name} says\n{found[2]}\n--- the demo answers\n{made}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
