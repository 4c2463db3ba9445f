{{/* A pod of `helm test`; call it with (dict "root" $ "name" NAME "script" SCRIPT). It has no token of
     the API server; it comes as the release's administrator. */}}
{{- define "quorate.testPod" -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ include "quorate.fullname" .root }}-test-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "quorate.labels" (dict "root" .root "component" "test") | nindent 4 }}
  annotations:
    helm.sh/hook: test
    # Not hook-succeeded: `helm test --logs` reads the logs afterwards.
    helm.sh/hook-delete-policy: before-hook-creation
    checkov.io/skip1: CKV_K8S_43=The nodes' image.
    {{- with .root.Values.podSecurityContext }}{{- if not (hasKey . "runAsUser") }}
    checkov.io/skip6: CKV_K8S_40=podSecurityContext leaves the uid to the platform.
    {{- end }}{{- end }}
    checkov.io/skip2: CKV_K8S_15=The nodes' image, which is there already.
    checkov.io/skip3: CKV_K8S_8=It runs once.
    checkov.io/skip4: CKV_K8S_9=It runs once.
    checkov.io/skip5: CKV2_K8S_6=It listens on nothing.
spec:
  restartPolicy: Never
  serviceAccountName: {{ include "quorate.serviceAccountName" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext:
    {{- include "quorate.podSecurity" .root | nindent 4 }}
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  containers:
    - name: test
      image: {{ include "quorate.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: [sh, -euc]
      args:
        - |
          {{- .script | nindent 10 }}
      env:
        - {name: QUORATE_USER, value: {{ .root.Values.secrets.adminUser | quote }}}
        - {name: HOME, value: /tmp}
      resources:
        requests: {cpu: 100m, memory: 256Mi}
        limits: {cpu: "1", memory: 256Mi}
      securityContext:
        {{- include "quorate.containerSecurity" .root | nindent 8 }}
      volumeMounts:
        - {name: secrets, mountPath: /secrets, readOnly: true}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: secrets
      secret:
        secretName: {{ include "quorate.secretName" .root }}
        defaultMode: 0440
        items:
          - {key: {{ .root.Values.secrets.adminPasswordKey }}, path: password}
    - name: tmp
      emptyDir: {}
{{- end -}}

{{/* What both scripts begin with: nodes by their stable names, and a queue of their own. */}}
{{- define "quorate.testHead" -}}
node() { echo "{{ include "quorate.fullname" . }}-$1.{{ include "quorate.domain" . }}:8080"; }
first=$(node 0)
last=$(node {{ sub (int .Values.replicas) 1 }})
queue=helm-test-$(date +%s)
q() { quorate --password-file /secrets/password "$@"; }
if ! q vhost list --url "$first" >/tmp/vhosts 2>&1; then
  cat /tmp/vhosts
  echo "The tests come as the user $QUORATE_USER with the password in the release's Secret, and $first did not let them in."
  exit 1
fi
{{- end -}}
