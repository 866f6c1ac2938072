"""The carrier: WebSocket connections (RFC 6455) on sockets, for the gateway's server and for the agent's client.

Sessions are the listeners of the carrier and know nothing of frames, HTTP or uvicorn. `client`, `connection`,
`connection_context`, `listener`, `proxy_tunnel`, `timer_wheel` and the packages `reading` and `epoll` (links on bare
sockets) need no server; `accept` decides which of several processes accepts a connection. The packages
`http_server` and `tls` build on uvicorn; `attach` and `asgi_connection` run on any ASGI server. This module imports
nothing, so that an agent never loads code that only a gateway needs.
"""
