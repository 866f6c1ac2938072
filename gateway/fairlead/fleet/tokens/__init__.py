"""Credentials in Redis, as far as they may be stored: digests, never what is presented."""
