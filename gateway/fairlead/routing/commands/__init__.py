"""The caller's side of commands. `dispatch` accepts a `request`, which `record_writer` stores, and cancels commands;
`input` and `results` carry their streams. `sweeper` finds what is due, `due_target` handles it, and `completion` does
what follows an end."""
