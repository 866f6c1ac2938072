"""The link protocol: the messages and their codecs, the state machines of both ends, WebSocket frames and handshake,
the close codes, the ids and the reconnect policy. Nothing here does I/O, reads a clock or draws random numbers.
"""
