{{/*
What the operator may do where it serves LinkGateways: (dict "secrets" NAMES), null for all Secrets.
The source is the table in operator/fairlead_operator/kube/rbac.py; a test says what is missing here or left over.
*/}}
{{- define "fairlead.operatorRules" -}}
- apiGroups: [fairlead.dev]
  resources: [linkgateways]
  verbs: [get, list, watch]
# To patch one is to make it go with its LinkGateway; to delete one is its ttlSecondsAfterFinished.
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
# Which pods a rollout brings.
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
# Those that a LinkGateway may stop asking for.
- apiGroups: [networking.k8s.io]
  resources: [ingresses, networkpolicies]
  verbs: [get, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, create, patch, delete]
# Counted, and marked with what their deletion would cost.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, patch]
# A LinkOperation's Drain; an eviction asks the PodDisruptionBudget first.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
{{- if or .secrets (kindIs "invalid" .secrets) }}
# The URLs of Redis, and whether there are tokens. A rule without names would be one for all Secrets.
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
