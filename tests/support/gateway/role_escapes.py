"""Ways around a role that lets its caller run `exec` and `file.*` on `env=dev`: words of selectors, spellings of
methods, and lists of agents."""

from __future__ import annotations

SELECTORS = (
    "*", "", " ", ",", "env", "!env", "env=prod", "env=dev,env=prod", "env=prod,env=dev", "env!=dev", "!retired",
    "env in (dev,prod)", "env in (prod)", "env notin (dev)", "env in ()", "env in (dev),env in (prod)",
    "env=*", "env=pr*",
    "fact.env=dev", "label.env=dev", "fact.env", "os!=windows", "env=dev\nenv=prod", "env=dev;env=prod",
    "env=dev or env=prod", "env=dev||env=prod", "(env=dev)", "env==prod", "ENV=prod", "env=PROD", "env=prod\0",
    "env=dev\u200b", "id=web", "agent!=x", "{}", "../*", "%2A", "env%3Dprod", "env=dev,*", "x" * 1_000, "a=b," * 40,
)  # fmt: skip
METHODS = (
    "shell", "Exec", "EXEC", "exec ", " exec", "exec\n", "exec\0", "exec.", "exec/", "./exec", "e\u0445ec",
    "exec\u200b", "\uff45\uff58\uff45\uff43", "*", "ex*", "file", "file.", "file.*", "FILE.get",
    "file/../shell", "file.get/../../shell",
    "file,shell", "sys.info", "proc.list", "fairlead.trusted_keys", "keys.update", "", "shell;exec", "exec,shell",
    "[\"exec\"]",
)  # fmt: skip
ALLOWED = {"file.", "file.*", "file.get/../../shell"}
"""These do begin with `file.`: each is a name that no agent has, and is asked of no agent but the caller's own."""


def agent_lists(own: str, other: str) -> tuple[object, ...]:
    """Lists of agents with one that is not the caller's, also in forms that are none."""
    return (
        [other], [own, other], [other] * 50, [own] * 50 + [other],
        [f"{own},{other}"], [f"{other}\n"], ["*"], [f"{other[:-1]}*"],
        [other.upper()], [f"../agents/{other}"], [{"id": other}], other,
    )  # fmt: skip
