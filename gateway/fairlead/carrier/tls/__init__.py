"""What TLS needs besides sockets: the certificate of a server, its keys for session tickets, and OpenSSL's functions
that Python's `ssl` has no name for.
"""
