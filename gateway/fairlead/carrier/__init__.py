"""The carrier: WebSocket connections (RFC 6455) on sockets, for the gateway's server and for the agent's client.

Sessions are its listeners and know nothing of frames, HTTP or uvicorn. `client`, `connection`, `connection_context`,
`listener`, `proxy_tunnel`, `timer_wheel` and the package `reading` need no server. The package `http_server` builds on
uvicorn, and `attach` with `asgi_connection` runs on any ASGI server. This module imports nothing, so that an agent
never loads what only a gateway needs.
"""
