"""The agent's side of commands. `command_delivery` sends commands and their input, `recorder` stores what agents send
(as the `append_ops` of a record), `takeover` gives a new link the commands that its agent has open."""
