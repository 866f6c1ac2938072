"""The mock gateway: plays scripted conversations to an agent under development, and reports what the agent did wrong.

For authors of agents in any language, from docs/protocol.md; the command is `fairlead mock-gateway`. It needs no
Redis and no gateway: it plays the scripts in `vectors/`, which ship with the package.

`script` has the conversations as types, `runner` plays them one after the other, and `conversation_run` plays one: it
sends what the gateway sends, gives `orders` to the agent, and compares what the agent sends (`comparison`). `server`
and `link` are where the agent connects; `agent_under_test` and `agent_process` are the agent.
"""
