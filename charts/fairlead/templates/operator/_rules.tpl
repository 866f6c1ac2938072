{{/*
What the operator may do where it serves LinkGateways: (dict "secrets" NAMES), null for all Secrets.
The source is the table in operator/fairlead_operator/kube/rbac.py; a test compares the two.
*/}}
{{- define "fairlead.operatorRules" -}}
- apiGroups: [fairlead.dev]
  resources: [linkgateways]
  verbs: [get, list, watch]
# Patch: set the LinkGateway as the owner. Delete: carry out ttlSecondsAfterFinished.
- apiGroups: [fairlead.dev]
  resources: [linkoperations]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [fairlead.dev]
  resources: [linkgateways/status, linkoperations/status]
  verbs: [patch]
# The children of a LinkGateway, written by server-side apply, and its scale.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, create, patch]
# Finds out which pods belong to the new revision of a rollout.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list]
# The pod template to which a failed canary returns.
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch]
# Objects that are deleted when a LinkGateway no longer asks for them.
- apiGroups: [networking.k8s.io]
  resources: [ingresses, networkpolicies]
  verbs: [get, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, create, patch, delete]
# Pods are counted, and annotated with their deletion cost.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, patch]
# For LinkOperations of type Drain; an eviction respects the PodDisruptionBudget.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
{{- if or .secrets (kindIs "invalid" .secrets) }}
# The URLs of Redis, and the tokens. A rule without names would allow all Secrets.
- apiGroups: [""]
  resources: [secrets]
  {{- with .secrets }}
  resourceNames: {{ . | uniq | sortAlpha | toJson }}
  {{- end }}
  verbs: [get]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
