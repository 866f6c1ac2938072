"""Contents in Redis: octets that many commands get, stored once under their digest."""
