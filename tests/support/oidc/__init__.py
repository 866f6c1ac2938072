"""An OpenID provider of the tests."""
