"""The link protocol, pure: messages and their codecs, the state machines of both ends, WebSocket framing and handshake,
close codes, ids and the policy of reconnecting. Nothing here does I/O, reads a clock or draws random numbers.
"""
