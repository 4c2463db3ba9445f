{{/* Names, labels and addresses that several objects share. */}}

{{- define "quorate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "quorate.headless" -}}
{{ include "quorate.fullname" . }}-headless
{{- end -}}

{{/* What selects the nodes. Never changes: selectors of a StatefulSet are immutable. */}}
{{- define "quorate.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end -}}

{{/* Labels of an object; call it with (dict "root" $ "component" "node"). */}}
{{- define "quorate.labels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "quorate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "quorate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "quorate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* The domain under which each pod has its stable name. */}}
{{- define "quorate.domain" -}}
{{ include "quorate.headless" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* Where clients are told that a node is; inside a pod, since its name is a variable there. */}}
{{- define "quorate.advertised" -}}
$(QUORATE_NODE).{{ if .Values.nodeServices.enabled }}{{ .Values.nodeServices.domain }}{{ else }}{{ include "quorate.domain" . }}{{ end }}
{{- end -}}

{{/* "true" where each node has ports of its own, which clients are told. */}}
{{- define "quorate.hasNodePorts" -}}
{{- if and .Values.nodeServices.enabled (eq .Values.nodeServices.type "NodePort") }}true{{ end -}}
{{- end -}}

{{/* A node's port on every machine; call it with (dict "root" $ "ordinal" 0 "name" "nats-tls"). */}}
{{- define "quorate.nodePort" -}}
{{- add (get .root.Values.nodeServices.nodePorts (replace "nats-tls" "natsTls" .name)) .ordinal -}}
{{- end -}}

{{/* Where clients are told that a node with ports of its own is, as settings; called like the former, without name. */}}
{{- define "quorate.advertisedPorts" -}}
{{- $values := .root.Values.nodeServices -}}
{{- $host := $values.host | default (printf "%s-%d.%s" (include "quorate.fullname" .root) (int .ordinal) $values.domain) -}}
{{- $told := dict -}}
{{- range include "quorate.clientPorts" .root | fromYamlArray -}}
{{- if has .name (list "http" "https" "amqp" "nats") -}}
{{- $port := include "quorate.nodePort" (dict "root" $.root "ordinal" $.ordinal "name" .name) -}}
{{- $_ := set $told (printf "%s_advertise" .name) (printf "%s:%s" $host $port) -}}
{{- end -}}
{{- end -}}
{{- toJson $told -}}
{{- end -}}

{{- define "quorate.secretName" -}}
{{ default (include "quorate.fullname" .) .Values.secrets.existingSecret }}
{{- end -}}

{{- define "quorate.tlsSecretName" -}}
{{- if eq .Values.tls.mode "existingSecret" -}}
{{ .Values.tls.existingSecret }}
{{- else -}}
{{ include "quorate.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{- define "quorate.archiveClaim" -}}
{{ default (printf "%s-archive" (include "quorate.fullname" .)) .Values.archive.existingClaim }}
{{- end -}}

{{- define "quorate.backupClaim" -}}
{{ default (printf "%s-backup" (include "quorate.fullname" .)) .Values.backup.existingClaim }}
{{- end -}}

{{/* Addresses of all nodes, for commands inside of the Kubernetes cluster. */}}
{{- define "quorate.urls" -}}
{{- $urls := list -}}
{{- range $ordinal := until (int .Values.replicas) -}}
{{- $urls = append $urls (printf "%s-%d.%s:8080" (include "quorate.fullname" $) $ordinal (include "quorate.domain" $)) -}}
{{- end -}}
{{- join "," $urls -}}
{{- end -}}

{{/* What every container of the chart is held to. */}}
{{- define "quorate.containerSecurity" -}}
{{- if .Values.containerSecurityContext -}}
{{- toYaml .Values.containerSecurityContext -}}
{{- else -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
privileged: false
readOnlyRootFilesystem: true
runAsGroup: 10001
runAsNonRoot: true
runAsUser: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}
{{- end -}}

{{- define "quorate.podSecurity" -}}
{{- if .Values.podSecurityContext -}}
{{- toYaml .Values.podSecurityContext -}}
{{- else -}}
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
runAsGroup: 10001
runAsNonRoot: true
runAsUser: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}
{{- end -}}
