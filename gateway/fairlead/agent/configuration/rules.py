"""Each key of the agent's configuration: how it is read, what is expected in words, and what it means.

Read by `load` beside it, by `fairlead agent run --help`, and by the test that holds docs/agent.md to it. A key of a
table is written with a dot. Values come typed from the file, and as text from the environment and from flags.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fairlead.agent.builtin.process.environment import OWN_PREFIX
from fairlead.carrier.tunnel import parse_proxy
from fairlead.errors import InvalidRequest
from fairlead.wire.identity import check_agent_id

DIRECT = "direct"
TABLES = ("facts", "exec", "file_get", "file_put", "shell", "proc_list")


class Fault(Exception):
    """One value is wrong; completes the sentence «the value …»."""


@dataclass(frozen=True, slots=True)
class Rule:
    read: Callable[[object], object]
    expected: str
    help: str
    secret: bool = False
    file: bool = True
    """Whether it may stand in the configuration file."""


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise Fault("is not text")
    return raw


def _url(raw: object) -> str:
    text = _text(raw)
    try:
        parts = urlsplit(text)
        legal = parts.scheme in ("ws", "wss") and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        legal = False
    if not legal:
        raise Fault("is not the address of a gateway")
    return text


def _id(raw: object) -> str:
    try:
        return check_agent_id(_text(raw))
    except InvalidRequest as e:
        raise Fault("is not a legal id") from e


def _token(raw: object) -> str:
    if not isinstance(raw, str) or re.fullmatch(r"[!-~]{1,4096}", raw) is None:
        raise Fault("is not allowed")
    return raw


def _path(raw: object) -> Path:
    return Path(raw if isinstance(raw, Path) else _text(raw))


def _proxy(raw: object) -> str:
    text = _text(raw)
    if text != DIRECT:
        try:
            parse_proxy(text)
        except ValueError as e:
            raise Fault("is not the address of a proxy") from e
    return text


def _one_of(*words: str) -> Callable[[object], str]:
    def read(raw: object) -> str:
        if raw not in words:
            raise Fault("is not one of them")
        return str(raw)

    return read


def _switch(raw: object) -> bool:
    if isinstance(raw, str) and raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    if not isinstance(raw, bool):
        raise Fault("is not true or false")
    return raw


def _bytes(raw: object) -> int:
    if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,18}", raw):
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 0:
        raise Fault("is not a whole number of bytes")
    return raw


def _paths(raw: object) -> tuple[str, ...]:
    items = raw.split(os.pathsep) if isinstance(raw, str) else raw
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise Fault("is not a list of paths")
    for item in items:
        if not item.startswith("/") or "\0" in item:
            raise Fault(f"has {item!r} in it, which does not begin with /")
    return tuple(items)


def _words(raw: object) -> tuple[str, ...]:
    try:
        items = shlex.split(raw) if isinstance(raw, str) else raw
    except ValueError as e:
        raise Fault(f"cannot be split into words ({e})") from e
    if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
        raise Fault("is not a list of words")
    return tuple(items)


def _names(raw: object) -> tuple[str, ...]:
    items = [item.strip() for item in raw.split(",") if item.strip()] if isinstance(raw, str) else raw
    if not isinstance(items, list):
        raise Fault("is not a list of names")
    for item in items:
        if not isinstance(item, str) or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", item) is None:
            raise Fault(f"has {item!r} in it, which is no name of a variable")
        if item.startswith(OWN_PREFIX):
            raise Fault(f"has {item} in it, and programs get none of the agent's own variables")
    return tuple(items)


def _facts(raw: object) -> dict[str, str]:
    if isinstance(raw, str):
        raw = dict(_fact(item) for item in raw.split(",") if item)
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        raise Fault("has a value that is not text")
    for key, value in raw.items():
        if not (0 < len(key) <= 64 and len(value) <= 256):
            raise Fault(f"has {key[:70]!r}, which is too long")
    if len(raw) > 48:
        raise Fault(f"has {len(raw)} of them")
    return {str(key): str(value) for key, value in raw.items()}


def _fact(item: str) -> tuple[str, str]:
    key, sign, value = item.partition("=")
    if not sign:
        raise Fault(f"has {item[:70]!r} in it, which is not KEY=VALUE")
    return key, value


_SWITCH = "true or false"
_FOLDERS = 'folders from / on: ["/srv", "/var/log"]; in the environment with colons between them'
_SIZE = "a whole number of bytes"

RULES: Mapping[str, Rule] = {
    "url": Rule(_url, "ws://host[:port] or wss://host[:port]", "Address of the gateway's links"),
    "id": Rule(_id, "1 to 128 of A-Z a-z 0-9 . _ -, the first a letter or digit", "The agent's id; the host's name"),
    "token": Rule(_token, "printable ASCII without blanks", "Token of agents; better in a file", True, False),
    "token_file": Rule(_path, "the path of a file", "File that holds the token, read at each attempt to connect"),
    "ca_file": Rule(_path, "the path of a file in PEM", "The authorities to trust in place of the system's"),
    "proxy": Rule(
        _proxy, "http://[user:password@]host:port, https://… or `direct`", "Proxy that knows CONNECT", secret=True
    ),
    "journal": Rule(_path, "the path of a folder", "Folder where accepted commands and unstored results outlive it"),
    "log_level": Rule(_one_of("debug", "info", "warning", "error"), "debug, info, warning or error", "Least severe"),
    "log_format": Rule(_one_of("text", "json"), "text or json", "Form of the log on stderr"),
    "facts": Rule(
        _facts, 'a table of text, 48 entries at most; in the environment "env=prod,rack=7"', "What it says of itself"
    ),
    "env_keep": Rule(_names, 'names of variables: ["JAVA_HOME"], no FAIRLEAD_…; in the environment with commas',
                     "Variables of its environment that programs get, beside PATH, HOME and the like"),
    "exec.enabled": Rule(_switch, _SWITCH, "Whether programs may be run"),
    "exec.allow": Rule(_paths, "paths of programs from / on; in the environment with colons between them",
                       "The only programs that may be run"),
    "file_get.enabled": Rule(_switch, _SWITCH, "Whether files may be read"),
    "file_get.roots": Rule(_paths, _FOLDERS, "The folders beneath which files may be read"),
    "file_get.max_bytes": Rule(_bytes, _SIZE, "The largest file that may be read"),
    "file_put.enabled": Rule(_switch, _SWITCH, "Whether files may be written"),
    "file_put.roots": Rule(_paths, _FOLDERS, "The folders beneath which files may be written"),
    "file_put.max_bytes": Rule(_bytes, _SIZE, "The largest file that may be written"),
    "shell.enabled": Rule(_switch, _SWITCH, "Whether terminals may be opened; off when exec is confined, unless said"),
    "shell.argv": Rule(_words, 'words: ["/bin/bash", "-l"]; in the environment as a shell reads them',
                       "The only program that a terminal runs"),
    "proc_list.enabled": Rule(_switch, _SWITCH, "Whether processes may be listed"),
}  # fmt: skip
"""All keys, in the order in which they are documented."""
