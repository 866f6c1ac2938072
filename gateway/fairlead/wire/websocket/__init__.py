"""RFC 6455 without I/O: the frames, their reader, and both sides of the handshake."""
