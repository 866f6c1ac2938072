"""An outbox with one open stream, and the path of what the tests import from helpers/."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from agent_memory import WINDOW

from fairlead.wire.messages import Cmd
from fairlead.wire.outbox import Outbox


@pytest.fixture
def outbox() -> Outbox:
    made = Outbox()
    made.opened(Cmd(id="A", method="m", credit=WINDOW), WINDOW)
    return made
