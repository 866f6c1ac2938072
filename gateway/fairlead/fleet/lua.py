"""The Lua scripts of this package, one constant each. They are read once, when the module is imported.

All modules of `fleet` that write to Redis use them. A line `--include record` in a script is replaced with record.lua,
the functions that several scripts share, because Redis scripts cannot include one another. This module sends nothing
to Redis: the `Pipeliner` does, and it loads a script into Redis if the script is missing there.
"""

from __future__ import annotations

from importlib import resources

from fairlead.errors import BusUnavailable
from fairlead.store.script import Script

_FOLDER = resources.files("fairlead.fleet").joinpath("scripts")


def _load(name: str) -> Script:
    source = _FOLDER.joinpath(f"{name}.lua").read_text(encoding="utf-8")
    shared = _FOLDER.joinpath("record.lua").read_text(encoding="utf-8")
    return Script(name, source.replace("--include record\n", shared, 1))


HEARTBEAT = _load("heartbeat")
CLAIM_AGENT = _load("claim_agent")
RELEASE_AGENT = _load("release_agent")
ACCEPT_COMMAND = _load("accept_command")
DISPATCH_COMMAND = _load("dispatch_command")
FENCE_COMMAND = _load("fence_command")
APPEND_RESULTS = _load("append_results")
FINISH_COMMAND = _load("finish_command")
READ_RECORD = _load("read_record")
TIME_OUT_COMMAND = _load("time_out_command")
CANCEL_COMMAND = _load("cancel_command")
APPEND_INPUT = _load("append_input")
CONSUME_INPUT = _load("consume_input")
READ_RESULTS = _load("read_results")
TAKE_DUE = _load("take_due")
RESCHEDULE = _load("reschedule")
FORGET_AGENT = _load("forget_agent")
MARK_ABSENT = _load("mark_absent")
ADD_EVENT = _load("add_event")
REMOVE_EVENTS = _load("remove_events")
READ_EVENTS = _load("read_events")
SET_LABELS = _load("set_labels")
UNBIND_KEY = _load("unbind_key")
REMOVE_OPEN = _load("remove_open")
MARK_MOVED = _load("mark_moved")
TAKE_MOVES = _load("take_moves")
SET_REBALANCE_TARGETS = _load("set_rebalance_targets")
SET_DISCONNECT = _load("set_disconnect")
CHECK_TYPE = _load("check_type")
ADD_SERVICE_TOKEN = _load("add_service_token")
REMOVE_SERVICE_TOKEN = _load("remove_service_token")
READ_ENROLMENT = _load("read_enrolment")
TAKE_ENROLMENT = _load("take_enrolment")
ASK_APPROVAL = _load("ask_approval")
DECIDE_ENROLMENT = _load("decide_enrolment")
BIND_AGENT_KEY = _load("bind_agent_key")
REVOKE_AGENT_KEY = _load("revoke_agent_key")
REVOKE_KEY = _load("revoke_key")


def late(what: str) -> BusUnavailable:
    """The error for a call, named by `what`, that a script did not execute because it reached Redis after its validity
    had ended."""
    return BusUnavailable(f"Redis answered too late; the {what} was not executed")
