"""The command `fairlead`: it reads options, runs one of the program's parts, and reports what happened.

`main` is the entry point. `commands` has one file for each command, `serve` and `workers` run gateway nodes, `demo` and
`doctor` do what these commands promise, `terminal` and `transfer` connect this terminal and its files with programs on
an agent, and `output` prints answers. The modules beside them hold what several commands share: their options, the exit
codes, shell completion.
"""
