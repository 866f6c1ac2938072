"""What TLS needs besides a transport: the acceptor, the certificate of a server, its keys for session tickets, and
those functions of OpenSSL that Python's `ssl` has no name for.
"""
