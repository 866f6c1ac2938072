"""The Lua scripts of this package, one constant each. They are read once, when the module is imported.

All modules of `fleet` that write to Redis use them. A line `--include record` in a script is replaced with record.lua,
and so are those of SHARED: the functions that several scripts share, because Redis scripts cannot
include one another. This module sends nothing to Redis: the `Store` does, and it loads a script into Redis if the
script is missing there.
"""

from __future__ import annotations

from importlib import resources

from fairlead.errors import BusUnavailable
from fairlead.store.script import Script

_FOLDER = resources.files("fairlead.fleet").joinpath("scripts")
SHARED = ("record", "accept", "append", "answer", "columns", "facts")


def _load(name: str) -> Script:
    source = _FOLDER.joinpath(f"{name}.lua").read_text(encoding="utf-8")
    for shared in SHARED:
        included = _FOLDER.joinpath(f"{shared}.lua").read_text(encoding="utf-8")
        source = source.replace(f"--include {shared}\n", included, 1)
    return Script(name, source)


HEARTBEAT = _load("heartbeat")
CLAIM_AGENT = _load("claim_agent")
RELEASE_AGENT = _load("release_agent")
ACCEPT_COMMAND = _load("accept_command")
ACCEPT_COMMANDS = _load("accept_commands")
DISPATCH_COMMAND = _load("dispatch_command")
FENCE_COMMAND = _load("fence_command")
APPEND_RESULTS = _load("append_results")
APPEND_ANSWER = _load("append_answer")
APPEND_BATCH = _load("append_batch")
FINISH_COMMAND = _load("finish_command")
READ_RECORD = _load("read_record")
TIME_OUT_COMMAND = _load("time_out_command")
CANCEL_COMMAND = _load("cancel_command")
RECALL_COMMAND = _load("recall_command")
END_OFFER = _load("end_offer")
END_LOST = _load("end_lost")
REOPEN_LOST = _load("reopen_lost")
SET_ASIDE = _load("set_aside")
APPEND_INPUT = _load("append_input")
CONSUME_INPUT = _load("consume_input")
READ_RESULTS = _load("read_results")
KEPT_RESULTS = _load("kept_results")
DROP_RESULTS = _load("drop_results")
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
REQUEST_APPROVAL = _load("request_approval")
DECIDE_APPROVAL = _load("decide_approval")
TAKE_APPROVAL = _load("take_approval")
BIND_AGENT_KEY = _load("bind_agent_key")
RELEASE_AGENT_KEY = _load("release_agent_key")
REVOKE_AGENT_KEY = _load("revoke_agent_key")
REVOKE_KEY = _load("revoke_key")
ADMIT_COMMAND = _load("admit_command")
ADMIT_RUN = _load("admit_run")
ADMIT_AGENT = _load("admit_agent")
READ_COLUMNS = _load("read_columns")
CREATE_COLUMNS = _load("create_columns")
CHANGE_FACTS = _load("change_facts")
INDEX_AGENT = _load("index_agent")
END_COLUMNS = _load("end_columns")


def late(what: str) -> BusUnavailable:
    """The error for a call, named by `what`, that a script did not execute because it reached Redis after its validity
    had ended."""
    return BusUnavailable(f"Redis answered too late; the {what} was not executed")
