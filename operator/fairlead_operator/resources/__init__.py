"""The manifests of the child objects of a LinkGateway, its `owner`: `children` has all of them, with the `deployment`
and the `ingress` in files of their own. Pure."""
