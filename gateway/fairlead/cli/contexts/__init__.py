"""Contexts: which gateway the command line talks to, and as whom, as kubectl has them.

`contexts_file` keeps the contexts, and `credentials` the tokens of each. `device_login` gets tokens from an issuer,
`token_refresh` renews them, and `selected` says which context a command uses. The commands are in `access`.
"""
