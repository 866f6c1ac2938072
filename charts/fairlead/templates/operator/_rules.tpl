{{/*
What the operator may do where it serves LinkGateways: (dict "root" $ "secrets" NAMES), no names for all Secrets.
A test holds it against the list in the operator's code: nothing is missing, nothing is left over.
*/}}
{{- define "fairlead.operatorRules" -}}
- apiGroups: [fairlead.dev]
  resources: [linkgateways]
  verbs: [get, list, watch]
- apiGroups: [fairlead.dev]
  resources: [linkgateways/status]
  verbs: [get, patch]
# The children of a LinkGateway, written by server-side apply; deleted when they are no longer wanted.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [ingresses, networkpolicies]
  verbs: [get, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, create, patch, delete]
# Pods are watched, and marked before one is given up; what routes to them is looked at.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [secrets]
  {{- with .secrets }}
  resourceNames: {{ . | uniq | sortAlpha | toJson }}
  {{- end }}
  verbs: [get]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
