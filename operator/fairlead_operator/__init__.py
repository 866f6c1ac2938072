"""The Kubernetes operator: makes the objects of every LinkGateway, scales its pods and carries out LinkOperations.

`main` reads the `settings` and starts the `process`, which has the `metrics`; `crd` prints the
CustomResourceDefinitions. The packages, each importing only from those below it:

- `runtime`: the operator at work: leader election, informer, controller, reconciler, health
- `operations`: LinkOperations, one step at a time
- `inputs`: what a reconciliation reads from Secrets, the IngressClass, machines, Redis and Prometheus
- `autoscaler`: how many pods there should be, and why
- `resources`: the manifests of the child objects
- `api`: the custom resources, their validation, and what their authors may ask for
- `kube`: the Kubernetes API: client, errors, Events, rights

It never opens a link and never serves agents or platforms.
"""
