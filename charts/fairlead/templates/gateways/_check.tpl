{{/*
What the API server and the operator would refuse, said before anything is installed: (dict "root" $ "key" KEY "given" VALUES).
The numbers are the defaults of LinkGateway, which a test compares.
*/}}
{{- define "fairlead.checkGateway" -}}
{{- $where := printf "gateways.%s" .key -}}
{{- $given := .given | default dict -}}
{{- $min := dig "replicas" "min" 2 $given | int -}}
{{- $max := dig "replicas" "max" 10 $given | int -}}
{{- if gt $min $max -}}
{{- fail (printf "%s.replicas: min %d is greater than max %d (2 and 10 unless set): raise max or lower min" $where $min $max) -}}
{{- end -}}
{{- $capacity := $given.capacity | default 10000 | int -}}
{{- $rate := dig "drain" "rate" 200 $given | int -}}
{{- $most := dig "drain" "maxSeconds" 300 $given | int -}}
{{- if gt $capacity (mul $rate $most | int) -}}
{{- fail (printf "%s: a full pod could not drain in time: capacity %d is greater than drain.rate %d × drain.maxSeconds %d; raise one of these, or lower capacity" $where $capacity $rate $most) -}}
{{- end -}}
{{- $taken := .root.Files.Get "files/operators-env.yaml" | fromYaml -}}
{{- range $one := dig "pod" "env" list $given -}}
{{- with get $taken $one.name -}}
{{- fail (printf "%s.pod.env must not set %s: %s" $where $one.name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
