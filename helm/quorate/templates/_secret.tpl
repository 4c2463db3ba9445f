{{/* The release's secrets as JSON: what a live Secret has is kept (`lookup` finds nothing under a
     plain `helm template`), the rest is made once a render, or the checksum would be of others. */}}
{{- define "quorate.secretData" -}}
{{- if not (hasKey .Values "madeSecrets") -}}
{{- $live := (lookup "v1" "Secret" .Release.Namespace (include "quorate.secretName" .)).data | default dict -}}
{{- if not .Values.secrets.existingSecret -}}
{{- $made := dict
      "cluster-secret" (randAlphaNum 40 | b64enc)
      "admin-password" (randAlphaNum 32 | b64enc) -}}
{{- $live = merge (pick $live "cluster-secret" "admin-password") $made -}}
{{- end -}}
{{- $_ := set .Values "madeSecrets" $live -}}
{{- end -}}
{{- toJson .Values.madeSecrets -}}
{{- end -}}

{{/* Changes with every secret that the nodes read at their start. TLS files are read again when they change. */}}
{{- define "quorate.secretChecksum" -}}
{{- $other := "" -}}
{{- if eq .Values.tls.mode "existingSecret" -}}
{{- $other = .Values.tls.existingSecret -}}
{{- end -}}
{{- printf "%s %s" (include "quorate.secretData" .) $other | sha256sum -}}
{{- end -}}
