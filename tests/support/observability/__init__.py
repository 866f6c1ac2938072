"""A real Prometheus, a fleet that it watches, and the answers to the dashboards' queries."""
