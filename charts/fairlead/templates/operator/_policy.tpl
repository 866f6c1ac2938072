{{/*
What the operator lets authors of LinkGateways ask for, as JSON: operator.policy for all, and in the release's namespace
what the values ask for the release's own LinkGateways, since both are the administrator's word.
*/}}
{{- define "fairlead.policy" -}}
{{- $values := .Values -}}
{{- $all := deepCopy $values.operator.policy -}}
{{- $_ := set $all "images" (prepend $all.images (include "fairlead.gatewayRepository" .)) -}}
{{- $_ := set $all "secrets" (concat $all.secrets $values.operator.rbac.secretNames) -}}
{{- $own := dict "images" list "secrets" (include "fairlead.namedSecrets" . | fromJsonArray) "podLabels" list
    "podAnnotations" list "serviceAnnotations" list "ingressAnnotations" list "ingressHosts" list "serviceTypes" list
    "prometheusUrls" list
    "tolerations" list "priorityClasses" list "runtimeClasses" list "volumes" list -}}
{{- $containers := false -}}
{{- $_ := set $own "secrets" (concat $own.secrets $values.images.pullSecrets) -}}
{{- range $given := $values.gateways -}}
{{- $given = $given | default dict -}}
{{- $pod := $given.pod | default dict -}}
{{- with $given.image -}}
{{- $_ := set $own "images" (append $own.images (regexReplaceAll "(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@.*)?$" . "")) -}}
{{- end -}}
{{- $_ := set $own "podLabels" (concat $own.podLabels (keys ($pod.labels | default dict))) -}}
{{- $_ := set $own "podAnnotations" (concat $own.podAnnotations (keys ($pod.annotations | default dict))) -}}
{{- range list "agents" "platform" -}}
{{- $service := dig "services" . dict $given -}}
{{- $_ := set $own "serviceAnnotations" (concat $own.serviceAnnotations (keys ($service.annotations | default dict))) -}}
{{- with $service.type }}{{ $_ := set $own "serviceTypes" (append $own.serviceTypes .) }}{{ end -}}
{{- end -}}
{{- with dig "scaling" "signals" "prometheus" "url" "" $given -}}
{{- $_ := set $own "prometheusUrls" (append $own.prometheusUrls .) -}}
{{- end -}}
{{- with $given.ingress -}}
{{- $_ := set $own "ingressHosts" (concat $own.ingressHosts (.hosts | default (list ""))) -}}
{{- $_ := set $own "ingressAnnotations" (concat $own.ingressAnnotations (keys (.annotations | default dict))) -}}
{{- end -}}
{{- with $given.httpRoute -}}
{{- $_ := set $own "ingressHosts" (concat $own.ingressHosts (.hostnames | default (list ""))) -}}
{{- $_ := set $own "ingressAnnotations" (concat $own.ingressAnnotations (keys (.annotations | default dict))) -}}
{{- end -}}
{{- range $pod.tolerations }}{{ $_ := set $own "tolerations" (append $own.tolerations (.key | default "")) }}{{ end -}}
{{- with $pod.priorityClassName }}{{ $_ := set $own "priorityClasses" (append $own.priorityClasses .) }}{{ end -}}
{{- with $pod.runtimeClassName }}{{ $_ := set $own "runtimeClasses" (append $own.runtimeClasses .) }}{{ end -}}
{{- range $pod.volumes -}}
{{- $_ := set $own "volumes" (concat $own.volumes (keys (omit . "name") | default (list "emptyDir"))) -}}
{{- end -}}
{{- range list "auditLog" "terminalRecordings" -}}
{{- if dig . "claimName" "" $given }}{{ $_ := set $own "volumes" (append $own.volumes "persistentVolumeClaim") }}{{ end -}}
{{- end -}}
{{- range concat ($pod.containers | default list) ($pod.initContainers | default list) -}}
{{- $_ := set $own "images" (append $own.images (regexReplaceAll "(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@.*)?$" (.image | default "") "")) -}}
{{- end -}}
{{- if or $pod.containers $pod.initContainers $pod.lifecycle }}{{ $containers = true }}{{ end -}}
{{- range $pod.imagePullSecrets }}{{ $_ := set $own "secrets" (append $own.secrets .name) }}{{ end -}}
{{- end -}}
{{- $said := dict -}}
{{- range $field, $patterns := $own }}{{ with $patterns }}{{ $_ := set $said $field (uniq . | sortAlpha) }}{{ end }}{{ end -}}
{{- if $containers }}{{ $_ := set $said "containers" true }}{{ end -}}
{{- $everywhere := dict -}}
{{- range $field, $patterns := $all }}{{ with $patterns }}{{ $_ := set $everywhere $field . }}{{ end }}{{ end -}}
{{- dict "all" $everywhere "namespaces" (dict .Release.Namespace $said) | toJson -}}
{{- end -}}

{{/* The repository of this release's gateways, without a tag. */}}
{{- define "fairlead.gatewayRepository" -}}
{{- $images := .Values.images -}}
{{- if $images.registry }}{{ $images.registry }}/{{ end }}{{ $images.gateway.repository -}}
{{- end -}}
