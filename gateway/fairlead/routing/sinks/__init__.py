"""The HTTP endpoints to which events are delivered: webhooks."""
