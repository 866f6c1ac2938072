"""The API server as the operator uses it: the client, its errors, references to objects, Events, and the rights."""
