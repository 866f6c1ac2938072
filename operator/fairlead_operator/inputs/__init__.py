"""What a reconciliation reads from Secrets, the IngressClass, and the nodes' rows in Redis."""
