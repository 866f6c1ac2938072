"""What nodes tell each other. `doorbell` defines the messages and their encoding, `inbox` sends and receives them
through Redis streams."""
