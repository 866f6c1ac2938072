"""A gateway process, its platform API and scripted agents, for the tests of the gateway as a whole."""
