"""A gateway that plays scripted conversations to an agent under development, and tells what the agent did wrong.

For whoever writes an agent in some language from docs/protocol.md. It needs no Redis and no gateway: it knows the
scripts of `vectors/`, which ship with the package, and says what they say. The command is `fairlead mock-gateway`.
"""
