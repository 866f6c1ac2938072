"""The Lua scripts of this room, by name, loaded once with the module.

Called by everything in `fleet` that writes. `--include row` in a script puts the functions that several share in place
of that line: Redis keeps each script alone. It sends nothing: the `Pipeliner` does, and loads a script where it is
missing.
"""

from __future__ import annotations

from importlib import resources

from fairlead.errors import BusUnavailable
from fairlead.store.script import Script

_FOLDER = resources.files("fairlead.fleet").joinpath("scripts")


def _load(name: str) -> Script:
    source = _FOLDER.joinpath(f"{name}.lua").read_text(encoding="utf-8")
    shared = _FOLDER.joinpath("row.lua").read_text(encoding="utf-8")
    return Script(name, source.replace("--include row\n", shared, 1))


BEAT = _load("beat")
CLAIM = _load("claim")
RELEASE = _load("release")
DISPATCH = _load("dispatch")
CREATE = _load("create")
FENCE = _load("fence")
APPEND = _load("append")
FINISH = _load("finish")
LOOK_UP = _load("look_up")
TIME_OUT = _load("time_out")
CANCEL = _load("cancel")
INPUT = _load("input")
CONSUME = _load("consume")
READ = _load("read")
TAKE_DUE = _load("take_due")
PUT_OFF = _load("put_off")
FORGET = _load("forget")
ABSENCE = _load("absence")
REMOVE_EVENTS = _load("remove_events")
LABEL = _load("label")
UNBIND = _load("unbind")
SETTLE = _load("settle")


def late(what: str) -> BusUnavailable:
    """The server refused `what` because it came after its validity: it was not executed."""
    return BusUnavailable(f"Redis answered too late; the {what} was not executed")
