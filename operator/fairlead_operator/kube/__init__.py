"""The Kubernetes API: `cluster` is the client, with its `errors`; `objects` has references and paths, `events` Events,
`workload_status` reads Deployments and Pods, `machine` Nodes, and `rbac` lists the rights that the operator needs."""
