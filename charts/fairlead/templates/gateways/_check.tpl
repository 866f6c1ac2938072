{{/*
What the API server and the operator would refuse, reported before anything is installed: (dict "root" $ "key" KEY "given" VALUES).
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
{{- $half := div (add ($given.acceptRate | default 200 | int) 1) 2 -}}
{{- $rate := min $half (dig "moves" "maxPerSecond" 200 $given | int) -}}
{{- $takes := add (div (add $capacity (sub $rate 1)) $rate) 60 -}}
{{- $most := dig "drain" "maxSeconds" 300 $given | int -}}
{{- if gt ($takes | int) $most -}}
{{- fail (printf "%s: a full pod could not drain in time: capacity %d at %d moves per second (the lesser of moves.maxPerSecond and half of acceptRate) and 60 s for commands take %d s, and drain.maxSeconds is %d; raise one of these, or lower capacity" $where $capacity $rate $takes $most) -}}
{{- end -}}
{{- if dig "linkTls" "secretName" "" $given -}}
{{- range $field := list "ingress" "httpRoute" -}}
{{- with get $given $field -}}
{{- if dig "enabled" true . -}}
{{- fail (printf "%s: linkTls needs %s to be off, because it would send plain HTTP to pods that speak TLS: expose the Service by services.agents.type, or pass TLS through by a route of your own" $where $field) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $taken := .root.Files.Get "files/operators-env.yaml" | fromYaml -}}
{{- range $one := dig "pod" "env" list $given -}}
{{- with get $taken $one.name -}}
{{- fail (printf "%s.pod.env must not set %s: %s" $where $one.name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
