"""The rights of those who have posted something that goes on without them."""
