"""Who may use a port: hosts and origins, bearer tokens, penalties for wrong ones, and the rate of new links."""
