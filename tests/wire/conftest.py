"""An outbox with one open stream, and the path of what the tests import from helpers/."""

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
