{{/* quorate.toml, of one map: what the chart must set, `config`, and `extraConfig` over it. */}}

{{/* A value as TOML. JSON strings are TOML strings; whole numbers come from YAML as floats. */}}
{{- define "quorate.tomlValue" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else if kindIs "slice" . -}}
[{{ range $i, $each := . }}{{ if $i }}, {{ end }}{{ include "quorate.tomlValue" $each }}{{ end }}]
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{- define "quorate.toToml" -}}
{{- range $key, $value := . }}
{{- if and (not (kindIs "map" $value)) (not (kindIs "invalid" $value)) }}
{{ $key }} = {{ include "quorate.tomlValue" $value }}
{{- end }}
{{- end }}
{{- range $section, $keys := . }}
{{- if kindIs "map" $keys }}

[{{ $section }}]
{{- range $key, $value := $keys }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "quorate.tomlValue" $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The nodes that a new node looks for, as `peers`; call it with (dict "root" $ "nodes" (list 0 1 2)). */}}
{{- define "quorate.peers" -}}
{{- $found := list -}}
{{- range .nodes -}}
{{- $node := printf "%s-%d" (include "quorate.fullname" $.root) (int .) -}}
{{- $found = append $found (printf "%s=%s.%s:7070" $node $node (include "quorate.domain" $.root)) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* "true" where nodes' settings differ, so that each has a file of its own. */}}
{{- define "quorate.hasOwnSettings" -}}
{{- if or (gt (int .Values.replicas) (int .Values.initialNodes)) (include "quorate.hasNodePorts" .) }}true{{ end -}}
{{- end -}}

{{/* Settings of a node; call it with (dict "root" $ "ordinal" ORDINAL), -1 for what the first ones have in common. */}}
{{- define "quorate.settings" -}}
{{- $values := .root.Values -}}
{{- $nodes := untilStep 0 (int $values.initialNodes) 1 -}}
{{- $joins := ge (int .ordinal) (int $values.initialNodes) -}}
{{- if $joins -}}
{{- $nodes = append $nodes (int .ordinal) -}}
{{- end -}}
{{- $tls := ne $values.tls.mode "off" -}}
{{- $settings := dict
      "cluster" (default (include "quorate.fullname" .root) $values.config.cluster)
      "data_dir" "/var/lib/quorate"
      "http" "0.0.0.0:8080"
      "amqp" (ternary "0.0.0.0:5672" "off" $values.listeners.amqp)
      "peer" "0.0.0.0:7070"
      "peers" (include "quorate.peers" (dict "root" .root "nodes" $nodes) | fromJsonArray)
      "secret_file" "/etc/quorate/secrets/cluster-secret"
      "default_user" $values.secrets.adminUser
      "default_password_file" "/etc/quorate/secrets/admin-password"
      "default_groups" $values.config.defaultGroups
      "replication" $values.config.replication
      "stop_ms_max" (mul 1000 (int $values.config.stopSeconds))
      "log_level" $values.config.logLevel
      "log_format" $values.config.logFormat
-}}
{{- if $joins -}}
{{- $_ := set $settings "join" true -}}
{{- end -}}
{{- if and (ge (int .ordinal) 0) (include "quorate.hasNodePorts" .root) -}}
{{- $settings = merge $settings (include "quorate.advertisedPorts" . | fromJson) -}}
{{- end -}}
{{- if $values.secrets.rotation -}}
{{- $_ := set $settings "previous_secret_file" "/etc/quorate/secrets/previous-cluster-secret" -}}
{{- $_ := set $settings "previous_default_password_file" "/etc/quorate/secrets/previous-admin-password" -}}
{{- end -}}
{{- if $values.archive.enabled -}}
{{- $_ := set $settings "log" (dict "archive_dir" "/archive") -}}
{{- end -}}
{{- if $values.listeners.nats -}}
{{- $_ := set $settings "nats" "0.0.0.0:4222" -}}
{{- end -}}
{{- if $values.listeners.natsTls -}}
{{- $_ := set $settings "nats_tls" "0.0.0.0:4443" -}}
{{- end -}}
{{- if $values.listeners.natsMonitor -}}
{{- $_ := set $settings "nats_monitor" "0.0.0.0:8222" -}}
{{- end -}}
{{- if $tls -}}
{{- $_ := set $settings "tls" (dict
      "client_cert" "/etc/quorate/tls/tls.crt"
      "client_key" "/etc/quorate/tls/tls.key") -}}
{{- if $values.tls.clientCertificates -}}
{{- $_ := set $settings.tls "client_ca" "/etc/quorate/tls/ca.crt" -}}
{{- end -}}
{{- if ne $values.tls.amqpsVerify "required" -}}
{{- $_ := set $settings.tls "amqps_verify" $values.tls.amqpsVerify -}}
{{- end -}}
{{- if $values.tls.peers -}}
{{- $_ := set $settings.tls "peer_cert" "/etc/quorate/tls/tls.crt" -}}
{{- $_ := set $settings.tls "peer_key" "/etc/quorate/tls/tls.key" -}}
{{- $_ := set $settings.tls "peer_ca" "/etc/quorate/tls/ca.crt" -}}
{{- end -}}
{{- if $values.listeners.amqps -}}
{{- $_ := set $settings "amqps" "0.0.0.0:5671" -}}
{{- end -}}
{{- if $values.listeners.https -}}
{{- $_ := set $settings "https" "0.0.0.0:8443" -}}
{{- end -}}
{{- end -}}
{{- include "quorate.toToml" (mergeOverwrite $settings (deepCopy $values.extraConfig)) | trim }}
{{- end -}}
