"""The command line `fairlead`: it reads options, calls the part of the program that does the work, and reports.

`main` is the entry point and `commands` has one file for each command. What they call: `serve` and `workers` run
gateway nodes, `demo` runs a whole fleet on this machine, `doctor` checks connections, `terminal` connects this terminal
with a program on an agent, `transfer` copies files, `operations` creates requests to the operator in a cluster,
`output` prints answers. The modules beside them are shared by several commands: options, exit codes, error reports,
shell completion.
"""
