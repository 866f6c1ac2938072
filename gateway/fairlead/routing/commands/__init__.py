"""The caller's side of commands. `dispatch` takes a command in (`record_writer` writes it down) and cancels it, `input`
and `results` carry its streams, `sweeper` keeps its deadline, `completion` does what follows its end."""
