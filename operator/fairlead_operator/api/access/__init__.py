"""The part of a LinkGateway that says who may do what, and where it is recorded."""
