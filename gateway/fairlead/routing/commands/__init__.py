"""The caller's side of commands. `dispatch` posts the command of a `request`, `input` and `results` carry its streams,
`sweeper` keeps its deadline, `completion` does what follows its end."""
