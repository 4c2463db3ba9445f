{{/* The release's secrets as JSON: what a live Secret has is kept (`lookup` finds nothing under a
     plain `helm template`), the rest is made once a render, or the checksum would be of others. With another
     `secrets.rotation` than was noted all are made anew, and those of before are kept beside them until it is empty. */}}
{{- define "quorate.secretData" -}}
{{- if not (hasKey .Values "madeSecrets") -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace (include "quorate.secretName" .) | default dict -}}
{{- $live := $found.data | default dict -}}
{{- if not .Values.secrets.existingSecret -}}
{{- $made := dict
      "cluster-secret" (randAlphaNum 40 | b64enc)
      "admin-password" (randAlphaNum 32 | b64enc) -}}
{{- if ne (include "quorate.rotation" .) (index (dig "metadata" "annotations" (dict) $found | default dict) "quorate/rotation" | default "") -}}
{{- if $live -}}
{{- $_ := set $made "previous-cluster-secret" (index $live "cluster-secret") -}}
{{- $_ := set $made "previous-admin-password" (index $live "admin-password") -}}
{{- end -}}
{{- $live = $made -}}
{{- else if .Values.secrets.rotation -}}
{{- $live = merge (pick $live "cluster-secret" "admin-password" "previous-cluster-secret" "previous-admin-password") $made -}}
{{- else -}}
{{- $live = merge (pick $live "cluster-secret" "admin-password") $made -}}
{{- end -}}
{{- end -}}
{{- $_ := set .Values "madeSecrets" $live -}}
{{- end -}}
{{- toJson .Values.madeSecrets -}}
{{- end -}}

{{/* The last rotation that was asked for: it stays noted when the value is empty again. */}}
{{- define "quorate.rotation" -}}
{{- if .Values.secrets.rotation -}}
{{- .Values.secrets.rotation -}}
{{- else -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace (include "quorate.secretName" .) | default dict -}}
{{- index (dig "metadata" "annotations" (dict) $found | default dict) "quorate/rotation" | default "" -}}
{{- end -}}
{{- end -}}

{{/* Changes with every secret that the nodes read at their start. TLS files are read again when they change. */}}
{{- define "quorate.secretChecksum" -}}
{{- $other := "" -}}
{{- if eq .Values.tls.mode "existingSecret" -}}
{{- $other = .Values.tls.existingSecret -}}
{{- end -}}
{{- printf "%s %s" (include "quorate.secretData" .) $other | sha256sum -}}
{{- end -}}
