"""The caller's side of commands. `dispatch` takes a `request` in (`record_writer` writes it down) and cancels it, and
`input` and `results` carry its streams. `sweeper` finds what is due, `due_target` handles it, `completion` does what
follows an end."""
