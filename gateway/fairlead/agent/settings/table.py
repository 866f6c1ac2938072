"""Every setting of the agent: how it is parsed, what is expected, and what it means.

Read by `loading`, by `fairlead agent run --help`, and by the test that compares docs/agent.md with it. The setting
of a built-in method has the method's table before a dot, `exec.allow`, and is a field of that method's options in
`fairlead.agent.builtin.options`. The usual kinds are in `fairlead.configuration.setting`; those below are the agent's.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from urllib.parse import urlsplit

from fairlead.agent.builtin.process.environment import OWN_PREFIX
from fairlead.carrier.proxy_tunnel import parse_proxy
from fairlead.configuration import InvalidValue, Setting
from fairlead.configuration.setting import choice, path, switch, text
from fairlead.errors import InvalidRequest
from fairlead.wire.ids import check_agent_id

DIRECT = "direct"
"""The value of `proxy` that means no proxy."""


def _nonempty(raw: object) -> str:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise InvalidValue("is not text")
    return raw


def _url(raw: object) -> str:
    url = _nonempty(raw)
    try:
        parts = urlsplit(url)
        legal = parts.scheme in ("ws", "wss") and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:
        legal = False
    if not legal:
        raise InvalidValue("is not a valid gateway URL")
    return url


def _id(raw: object) -> str:
    try:
        return check_agent_id(_nonempty(raw))
    except InvalidRequest as e:
        raise InvalidValue("is not a valid agent id") from e


def _proxy(raw: object) -> str:
    url = _nonempty(raw)
    if url != DIRECT:
        try:
            parse_proxy(url)
        except ValueError as e:
            raise InvalidValue("is not a valid proxy URL") from e
    return url


def _bytes(raw: object) -> int:
    if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,18}", raw):
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 0:
        raise InvalidValue("is not a whole number of bytes")
    return raw


def _paths(raw: object) -> tuple[str, ...]:
    items = raw.split(os.pathsep) if isinstance(raw, str) else raw
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise InvalidValue("is not a list of paths")
    for item in items:
        if not item.startswith("/") or "\0" in item:
            raise InvalidValue(f"contains {item!r}, which does not begin with /")
    return tuple(items)


def _words(raw: object) -> tuple[str, ...]:
    try:
        items = shlex.split(raw) if isinstance(raw, str) else raw
    except ValueError as e:
        raise InvalidValue(f"cannot be split into words ({e})") from e
    if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
        raise InvalidValue("is not a list of words")
    return tuple(items)


def _variables(raw: object) -> tuple[str, ...]:
    items = [item.strip() for item in raw.split(",") if item.strip()] if isinstance(raw, str) else raw
    if not isinstance(items, list):
        raise InvalidValue("is not a list of names")
    for item in items:
        if not isinstance(item, str) or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", item) is None:
            raise InvalidValue(f"contains {item!r}, which is not a variable name")
        if item.startswith(OWN_PREFIX):
            raise InvalidValue(f"contains {item}, and programs get none of the agent's own variables")
    return tuple(items)


def _patterns(raw: object) -> tuple[str, ...]:
    items = [item.strip() for item in raw.split(",") if item.strip()] if isinstance(raw, str) else raw
    if not isinstance(items, list):
        raise InvalidValue("is not a list of names")
    for item in items:
        if not isinstance(item, str) or re.fullmatch(r"[A-Za-z0-9:_.\\@*?][A-Za-z0-9:_.\\@*?-]{0,254}", item) is None:
            raise InvalidValue(f"contains {item!r}, which is not the name of a unit")
    return tuple(items)


def _facts(raw: object) -> dict[str, str]:
    if isinstance(raw, str):
        raw = dict(_fact(item) for item in raw.split(",") if item)
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        raise InvalidValue("has a value that is not text")
    for key, value in raw.items():
        if not (0 < len(key) <= 64 and len(value) <= 256):
            raise InvalidValue(f"contains {key[:70]!r}, which is too long")
    if len(raw) > 48:
        raise InvalidValue(f"has {len(raw)} entries")
    return {str(key): str(value) for key, value in raw.items()}


def _fact(item: str) -> tuple[str, str]:
    key, sign, value = item.partition("=")
    if not sign:
        raise InvalidValue(f"contains {item[:70]!r}, which is not KEY=VALUE")
    return key, value


_FOLDERS = 'absolute paths of folders: ["/srv", "/var/log"]; in the environment separated by colons'
_SIZE = "a whole number of bytes"

SETTINGS: Mapping[str, Setting] = {
    "url": Setting(_url, "ws://host[:port] or wss://host[:port]", "URL of the gateway"),
    "id": Setting(_id, "1 to 128 of A-Z a-z 0-9 . _ -, the first a letter or digit", "The agent's id; by default the "
                  "host's name"),
    "token": text(r"[!-~]{1,4096}", "printable ASCII without spaces", "The agents' token; better in a file", True,
                  in_file=False),
    "token_file": path("File that contains the token; it is read at each attempt to connect", "the path of a file"),
    "identity": path("Folder, for this agent only, with the key that it makes and the credential that it gets",
                     "the path of a folder"),
    "enrolment_token": text(r"[!-~]{1,4096}", "printable ASCII without spaces", "Token with which the agent enrols "
                            "once (needs `identity`); better in a file", True, in_file=False),
    "enrolment_token_file": path("File that contains the enrolment token; it is read when it is needed",
                                 "the path of a file"),
    "ca_file": path("PEM file of the certificate authorities to trust instead of the system's", "the path of a file"),
    "tls_cert": path("PEM file of the agent's client certificate, with its chain; it is read again when it changes",
                     "the path of a file"),
    "tls_key": path("PEM file of the key of `tls_cert`, without a passphrase", "the path of a file"),
    "proxy": Setting(_proxy, "http://[user:password@]host:port, https://… or `direct`",
                     "Proxy to connect through, by HTTP CONNECT", secret=True),
    "journal": path("Folder that keeps accepted commands and unstored results across restarts",
                    "the path of a folder"),
    "trusted_keys": path("File of the public keys that sign commands; any other command is refused (needs `journal`)",
                         "the path of a file"),
    "log_level": choice(("debug", "info", "warning", "error"), "Least severe level that is logged"),
    "log_format": choice(("text", "json"), "Format of the log on stderr"),
    "facts": Setting(_facts, 'a table of text with at most 48 entries; in the environment "env=prod,rack=7"',
                     "Facts about this agent", flag="fact", is_table=True),
    "env_keep": Setting(_variables, 'names of variables, none of them FAIRLEAD_…: ["JAVA_HOME"]; in the environment '
                        "separated by commas",
                        "Variables of the agent's environment that programs inherit, besides PATH, HOME and the like"),
    "exec.enabled": switch("Whether programs may be run"),
    "exec.allow": Setting(_paths, "absolute paths of programs; in the environment separated by colons",
                          "The only programs that may be run"),
    "file_get.enabled": switch("Whether files may be read"),
    "file_get.roots": Setting(_paths, _FOLDERS, "The folders in which files may be read"),
    "file_get.max_bytes": Setting(_bytes, _SIZE, "The largest file that may be read"),
    "file_put.enabled": switch("Whether files may be written"),
    "file_put.roots": Setting(_paths, _FOLDERS, "The folders in which files may be written"),
    "file_put.max_bytes": Setting(_bytes, _SIZE, "The largest file that may be written"),
    "shell.enabled": switch("Whether terminals may be opened; off by default when exec.allow is set"),
    "shell.argv": Setting(_words, 'words: ["/bin/bash", "-l"]; in the environment quoted as for a shell',
                          "The only program that a terminal runs"),
    "log_tail.enabled": switch("Whether the ends of files and journals may be read; like file.get if it is not set"),
    "proc_list.enabled": switch("Whether processes may be listed"),
    "proc_signal.enabled": switch("Whether signals may be sent; off by default when exec.allow is set"),
    "script.enabled": switch("Whether scripts may be run; off by default when exec.allow is set"),
    "service.enabled": switch("Whether units of systemd may be looked at, started and stopped; the latter two are off "
                              "by default when exec.allow is set"),
    "service.units": Setting(_patterns, 'names of units, in which * stands for anything: ["nginx.service"]; in the '
                             "environment separated by commas",
                             "The only units that may be named"),
}  # fmt: skip
"""All settings, in the order in which they are documented."""
