"""One HTTP request as it arrives: its octets, its head, its body, and the strict parser of a request for a link.

`http_connection` and `link_acceptor` use it. Nothing here knows the connection or writes an answer.

- `buffer`: received octets that wait for their turn
- `head`: what a head must be, whoever parsed it
- `body`: how much of a body may be read
- `upgrade`: a request for a link in its plainest form
"""
