"""The carrier: RFC 6455 on a socket, for the gateway's server and for the agent's client.

Sessions are given to it as listeners and know nothing of frames, HTTP or uvicorn. `client`, `connection`,
`listener` and `sweep` need no server package; `upgrade`, `channel` and `server` stand on uvicorn; `attach`
runs on any ASGI server. This module imports nothing, so that an agent never loads what only a gateway has.
"""
