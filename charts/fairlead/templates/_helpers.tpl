{{- define "fairlead.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that with the longest suffix, and that of a pod, a name fits into 63. Services and the operator's Lease use it. */}}
{{- define "fairlead.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = .Release.Name -}}
{{- if not (contains (include "fairlead.name" .) $name) -}}
{{- $name = printf "%s-%s" $name (include "fairlead.name" .) -}}
{{- end -}}
{{- end -}}
{{- $name = $name | trunc 40 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "%s cannot be the name of a Service, which begins with a letter and has only a-z, 0-9 and dashes: set another fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* All labels of an object: (dict "root" $ "component" NAME) */}}
{{- define "fairlead.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{ include "fairlead.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels that never change in upgrades, because selectors cannot change: (dict "root" $ "component" NAME) */}}
{{- define "fairlead.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fairlead.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* (dict "root" $ "image" .Values.images.NAME) */}}
{{- define "fairlead.image" -}}
{{- $images := .root.Values.images -}}
{{- $place := .image.repository -}}
{{- if $images.registry -}}{{- $place = printf "%s/%s" $images.registry $place -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $place .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $place (default .root.Chart.AppVersion $images.tag) -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Pod Security Standard "restricted". The user of all images; its group owns the volumes. */}}
{{- define "fairlead.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "fairlead.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "fairlead.operatorName" -}}
{{- printf "%s-operator" (include "fairlead.fullname" .) -}}
{{- end -}}

{{- define "fairlead.operatorAccount" -}}
{{- $account := .Values.operator.serviceAccount -}}
{{- if $account.create -}}
{{- default (include "fairlead.operatorName" .) $account.name -}}
{{- else -}}
{{- required "operator.serviceAccount.create is false: operator.serviceAccount.name must name an account that exists" $account.name -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.tokensSecret" -}}
{{- default (printf "%s-tokens" (include "fairlead.fullname" .)) .Values.tokens.existingSecret -}}
{{- end -}}

{{- define "fairlead.valkeyName" -}}
{{- printf "%s-valkey" (include "fairlead.fullname" .) -}}
{{- end -}}

{{- define "fairlead.valkeySecret" -}}
{{- default (include "fairlead.valkeyName" .) .Values.redis.valkey.existingSecret -}}
{{- end -}}

{{/* "true" if no Redis is configured, so that the Valkey for evaluations is deployed. */}}
{{- define "fairlead.evaluation" -}}
{{- $redis := .Values.redis -}}
{{- if and $redis.url $redis.existingSecret -}}
{{- fail "redis.url and redis.existingSecret are both set: only one of them can hold the address, remove the other" -}}
{{- end -}}
{{- if not (or $redis.url $redis.existingSecret) -}}true{{- end -}}
{{- end -}}

{{- define "fairlead.redisSecret" -}}
{{- if include "fairlead.evaluation" . -}}
{{- include "fairlead.valkeySecret" . -}}
{{- else -}}
{{- default (printf "%s-redis" (include "fairlead.fullname" .)) .Values.redis.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "fairlead.redisSecretKey" -}}
{{- if .Values.redis.existingSecret -}}{{- .Values.redis.existingSecretKey -}}{{- else -}}url{{- end -}}
{{- end -}}

{{/* (dict "root" $ "key" KEY): the LinkGateway with the key default has just the release's name. */}}
{{- define "fairlead.gatewayName" -}}
{{- $name := include "fairlead.fullname" .root -}}
{{- if ne .key "default" -}}
{{- $name = printf "%s-%s" $name .key -}}
{{- end -}}
{{- if gt (len $name) 40 -}}
{{- fail (printf "gateways.%s: its name %s has %d characters, and 40 are allowed: set a shorter fullnameOverride" .key $name (len $name)) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The namespaces that the operator serves, as a JSON list; empty for the whole cluster. */}}
{{- define "fairlead.namespaces" -}}
{{- $operator := .Values.operator -}}
{{- if $operator.clusterScope -}}
{{- if $operator.namespaces -}}
{{- fail "operator.clusterScope and operator.namespaces are both set: only one of them can say where LinkGateways are served" -}}
{{- end -}}
[]
{{- else -}}
{{- $namespaces := $operator.namespaces | default (list .Release.Namespace) -}}
{{- if and .Values.gateways (not (has .Release.Namespace $namespaces)) -}}
{{- fail (printf "operator.namespaces leaves out %s, where the LinkGateways of this release would be: nobody would serve them; add it, or set gateways.default to null" .Release.Namespace) -}}
{{- end -}}
{{- $namespaces | uniq | sortAlpha | toJson -}}
{{- end -}}
{{- end -}}

{{/* The Secrets that this chart's LinkGateways name, as JSON: the URLs of Redis, its CA certificates, the tokens, and the certificates. */}}
{{- define "fairlead.namedSecrets" -}}
{{- $names := list (include "fairlead.redisSecret" .) (include "fairlead.tokensSecret" .) -}}
{{- range $gateway := .Values.gateways -}}
{{- range list "redis" "tokens" -}}
{{- with dig . "secretRef" "name" "" ($gateway | default dict) }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- with dig "redis" "caSecretRef" "name" "" ($gateway | default dict) }}{{ $names = append $names . }}{{ end -}}
{{- with dig "redis" "operatorSecretRef" "name" "" ($gateway | default dict) }}{{ $names = append $names . }}{{ end -}}
{{- with dig "redis" "clientTls" "secretName" "" ($gateway | default dict) }}{{ $names = append $names . }}{{ end -}}
{{- with dig "linkTls" "secretName" "" ($gateway | default dict) }}{{ $names = append $names . }}{{ end -}}
{{- with dig "linkTls" "clientCa" "secretName" "" ($gateway | default dict) }}{{ $names = append $names . }}{{ end -}}
{{- with dig "auditLog" "keySecretRef" "name" "" ($gateway | default dict) }}{{ $names = append $names . }}{{ end -}}
{{- range list "roles" "issuers" "eventSinks" -}}
{{- with dig . "secret" "" ($gateway | default dict) }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}
