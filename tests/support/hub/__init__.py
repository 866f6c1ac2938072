"""Sessions without a network, for the tests of the hub."""
