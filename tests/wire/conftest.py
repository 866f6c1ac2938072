"""An outbox with one open stream, for the tests of the state machines."""

from __future__ import annotations

import pytest

from fairlead.wire.messages import Cmd
from fairlead.wire.outbox import Outbox

from support.wire.agent_memory import WINDOW


@pytest.fixture
def outbox() -> Outbox:
    made = Outbox()
    made.opened(Cmd(id="A", method="m", credit=WINDOW), WINDOW)
    return made
