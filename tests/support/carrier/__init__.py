"""A WebSocket client of literal bytes and listeners that record, for the tests of the carrier."""
