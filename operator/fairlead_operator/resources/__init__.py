"""The manifests of the objects that the operator makes of a LinkGateway. Pure."""
