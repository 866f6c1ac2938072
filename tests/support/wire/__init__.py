"""An agent's memory and histories of links, for the tests of the protocol's state machines."""
