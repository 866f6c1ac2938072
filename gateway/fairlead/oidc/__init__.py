"""OpenID Connect: the issuers that the platform trusts, their keys, and what their JWTs say about a user.

`issuers_file`, `key_set`, `jwt_verifier` and `user` are pure; `provider` asks an issuer over HTTP, and `issuer_keys`
keeps its keys. `authorization` makes callers of the API of the result; the command line logs a user in with `provider`.
"""
