"""The agent's side of commands. `command_delivery` sends commands and cancels, `input_delivery` sends their input,
`recording` stores what agents send, `takeover` gives a new link the open commands of its agent."""
