"""The manifests of a LinkGateway's child objects: `children` has all of them, of which `deployment` and `ingress` are
separate modules. `owner` is the LinkGateway, and `template_reading` reads a pod template back. Pure."""
