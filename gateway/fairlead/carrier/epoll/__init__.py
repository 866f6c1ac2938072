"""Open connections on bare socket descriptors: one epoll for all of them, nested in the event loop, and one small
object for each. Linux only.
"""
