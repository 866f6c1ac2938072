"""An agent in another language as a process, and the API that sends it commands, for the tests of interoperability."""
