{{/* What a Job of the release is, without containers and volumes; call it with (dict "root" $ "component" NAME). */}}
{{- define "quorate.jobPodHead" -}}
restartPolicy: Never
serviceAccountName: {{ include "quorate.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "quorate.podSecurity" .root | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A command of the administrator in the nodes' image; call it with (dict "root" $ "name" NAME). */}}
{{- define "quorate.jobCommand" -}}
name: {{ .name }}
image: {{ include "quorate.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [sh, -euc]
env:
  - {name: QUORATE_USER, value: {{ .root.Values.secrets.adminUser | quote }}}
  - {name: QUORATE_URL, value: {{ include "quorate.urls" .root | quote }}}
  - {name: HOME, value: /tmp}
securityContext:
  {{- include "quorate.containerSecurity" .root | nindent 2 }}
{{- end -}}

{{- define "quorate.jobSecrets" -}}
- name: secrets
  secret:
    secretName: {{ include "quorate.secretName" . }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.secrets.adminPasswordKey }}, path: password}
- name: tmp
  emptyDir: {}
{{- end -}}

{{- define "quorate.jobExceptions" -}}
checkov.io/skip1: CKV_K8S_11=It runs seldom and may take what CPU is idle; memory is limited.
checkov.io/skip2: CKV_K8S_43=The nodes' image.
checkov.io/skip3: CKV_K8S_15=The nodes' image, which is there already.
checkov.io/skip4: CKV_K8S_8=It runs to its end.
checkov.io/skip5: CKV_K8S_9=It runs to its end.
checkov.io/skip6: CKV2_K8S_6=It listens on nothing.
{{- with .Values.podSecurityContext }}{{- if not (hasKey . "runAsUser") }}
checkov.io/skip7: CKV_K8S_40=podSecurityContext leaves the uid to the platform.
{{- end }}{{- end }}
{{- end -}}
