"""The agent's side of commands. `command_delivery` sends commands and cancels, `input_delivery` sends their input,
`recorder` stores what agents send (as `append_ops`), `takeover` gives a new link the open commands of its agent."""
