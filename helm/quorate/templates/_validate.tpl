{{/* What the schema cannot see: rules over several values. All that is wrong is said at once. */}}
{{- define "quorate.validate" -}}
{{- $v := .Values -}}
{{- $replicas := int $v.replicas -}}
{{- $wrong := list -}}
{{- if not $v.image.repository -}}
{{- $wrong = append $wrong "image.repository: no registry has an image of Quorate yet; build one with `make image IMAGE=REGISTRY/quorate:TAG`, push it, and give image.repository=REGISTRY/quorate and image.tag=TAG" -}}
{{- end -}}
{{- if not $v.allowUnsafe -}}
{{- if lt $replicas 3 -}}
{{- $wrong = append $wrong (printf "replicas: %d nodes cannot bear the loss of one; give 3 or 5, or allowUnsafe=true for a trial" $replicas) -}}
{{- end -}}
{{- if and (ge $replicas 3) (eq (mod $replicas 2) 0) -}}
{{- $wrong = append $wrong (printf "replicas: %d nodes bear the loss of no more than %d do; give an odd number, or allowUnsafe=true" $replicas (sub $replicas 1)) -}}
{{- end -}}
{{- if gt (int $v.config.replication) $replicas -}}
{{- $wrong = append $wrong (printf "config.replication: %d copies need as many nodes, and replicas is %d" (int $v.config.replication) $replicas) -}}
{{- end -}}
{{- if lt (int $v.config.replication) 3 -}}
{{- $wrong = append $wrong (printf "config.replication: %d copies cannot bear the loss of one; give 3 or more, or allowUnsafe=true" (int $v.config.replication)) -}}
{{- end -}}
{{- if not $v.persistence.enabled -}}
{{- $wrong = append $wrong "persistence.enabled: without volumes a restart of all pods loses everything; leave it true, or allowUnsafe=true for a trial" -}}
{{- end -}}
{{- end -}}
{{- if gt (int $v.initialNodes) $replicas -}}
{{- $wrong = append $wrong (printf "initialNodes: the cluster began with %d nodes and replicas is %d; before there are fewer, remove nodes with `quorate node remove`, and never below initialNodes" (int $v.initialNodes) $replicas) -}}
{{- end -}}
{{- $live := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "quorate.fullname" .) -}}
{{- if $live -}}
{{- $first := index (default dict $live.metadata.annotations) "quorate/initial-nodes" -}}
{{- if and $first (ne $first (toString $v.initialNodes)) -}}
{{- $wrong = append $wrong (printf "initialNodes: this cluster began with %s nodes and that does not change; to grow, set replicas alone" $first) -}}
{{- end -}}
{{- end -}}
{{- if and (gt $replicas 1) (gt (int $v.podDisruptionBudget.maxUnavailable) (div (sub $replicas 1) 2)) -}}
{{- $wrong = append $wrong (printf "podDisruptionBudget.maxUnavailable: %d of %d nodes away leave no majority; give at most %d" (int $v.podDisruptionBudget.maxUnavailable) $replicas (div (sub $replicas 1) 2)) -}}
{{- end -}}
{{- if le (int $v.terminationGracePeriodSeconds) (add (int $v.drain.timeoutSeconds) 20) -}}
{{- $wrong = append $wrong (printf "terminationGracePeriodSeconds: %d s is too short for a drain of %d s and the stop after it; give more than %d" (int $v.terminationGracePeriodSeconds) (int $v.drain.timeoutSeconds) (add (int $v.drain.timeoutSeconds) 20)) -}}
{{- end -}}
{{- if gt (int $v.config.stopSeconds) 10 -}}
{{- if le (int $v.terminationGracePeriodSeconds) (add (int $v.drain.timeoutSeconds) (mul 2 (int $v.config.stopSeconds))) -}}
{{- $wrong = append $wrong (printf "config.stopSeconds: twice %d s and a drain of %d s do not fit into terminationGracePeriodSeconds=%d" (int $v.config.stopSeconds) (int $v.drain.timeoutSeconds) (int $v.terminationGracePeriodSeconds)) -}}
{{- end -}}
{{- end -}}
{{- if ne (toString $v.resources.requests.memory) (toString $v.resources.limits.memory) -}}
{{- $wrong = append $wrong (printf "resources.requests.memory: %v is not the limit, %v: the node plans with its limit, so ask for all of it" $v.resources.requests.memory $v.resources.limits.memory) -}}
{{- end -}}
{{- if and (eq $v.tls.mode "existingSecret") (not $v.tls.existingSecret) -}}
{{- $wrong = append $wrong "tls.existingSecret: name the Secret with tls.crt and tls.key, or set tls.mode to certManager or off" -}}
{{- end -}}
{{- if and (ne $v.tls.mode "existingSecret") $v.tls.existingSecret -}}
{{- $wrong = append $wrong (printf "tls.existingSecret: is not used with tls.mode=%s; set tls.mode=existingSecret, or leave the name away" $v.tls.mode) -}}
{{- end -}}
{{- if and (eq $v.tls.mode "off") (or $v.tls.peers $v.tls.clientCertificates) -}}
{{- $wrong = append $wrong "tls.mode: is off, and tls.peers and tls.clientCertificates need certificates; set tls.mode to existingSecret or certManager" -}}
{{- end -}}
{{- if and (eq $v.tls.amqpsVerify "optional") (not $v.tls.clientCertificates) -}}
{{- $wrong = append $wrong "tls.amqpsVerify: optional needs tls.clientCertificates=true; set it, or leave amqpsVerify as it was" -}}
{{- end -}}
{{- if and (eq $v.tls.mode "certManager") (not $v.tls.certManager.issuer.name) (not $v.tls.certManager.createIssuer) -}}
{{- $wrong = append $wrong "tls.certManager.issuer.name: name the issuer, or set tls.certManager.createIssuer=true for a self-signed authority" -}}
{{- end -}}
{{- if and (eq $v.tls.mode "certManager") $v.tls.certManager.issuer.name $v.tls.certManager.createIssuer -}}
{{- $wrong = append $wrong "tls.certManager.issuer.name: is not used with createIssuer=true; give one of the two" -}}
{{- end -}}
{{- if and (eq $v.tls.mode "off") (not $v.listeners.amqp) -}}
{{- $wrong = append $wrong "listeners.amqp: without it and with tls.mode=off no AMQP client can connect; leave it true, or set tls.mode" -}}
{{- end -}}
{{- if and (eq $v.tls.mode "off") $v.listeners.natsTls -}}
{{- $wrong = append $wrong "listeners.natsTls: needs certificates; set tls.mode to existingSecret or certManager" -}}
{{- end -}}
{{- if and $v.listeners.natsMonitor (not $v.listeners.nats) (not $v.listeners.natsTls) -}}
{{- $wrong = append $wrong "listeners.natsMonitor: there is no NATS to watch; set listeners.nats or listeners.natsTls" -}}
{{- end -}}
{{- $archives := list -}}
{{- range $place := list $v.archive.existingClaim $v.archive.hostPath $v.archive.size -}}
{{- if $place -}}{{- $archives = append $archives $place -}}{{- end -}}
{{- end -}}
{{- if and $v.archive.enabled (ne (len $archives) 1) -}}
{{- $wrong = append $wrong (printf "archive: %d volumes are named; give one of archive.existingClaim, archive.size and archive.hostPath" (len $archives)) -}}
{{- end -}}
{{- if and $archives (not $v.archive.enabled) -}}
{{- $wrong = append $wrong "archive.enabled: is false although a volume is named; set it to true, or leave the volume away" -}}
{{- end -}}
{{- if and (or $v.postmortem.cronJob.enabled $v.postmortem.job.enabled) (not $v.archive.enabled) -}}
{{- $wrong = append $wrong "postmortem: reads the archive, and archive.enabled is false" -}}
{{- end -}}
{{- if and (or $v.postmortem.cronJob.enabled $v.postmortem.job.enabled) (not $v.postmortem.image) -}}
{{- $wrong = append $wrong "postmortem.image: name an image with Spark and `quorate postmortem`; the nodes' image has neither" -}}
{{- end -}}
{{- if and $v.monitoring.podMonitor.enabled $v.monitoring.serviceMonitor.enabled -}}
{{- $wrong = append $wrong "monitoring: podMonitor and serviceMonitor would count each node twice; enable one of the two" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.host) -}}
{{- $wrong = append $wrong "ingress.host: give the name under which clients come" -}}
{{- end -}}
{{- $ports := include "quorate.hasNodePorts" . -}}
{{- if and $v.nodeServices.enabled (not $ports) (not $v.nodeServices.domain) -}}
{{- $wrong = append $wrong "nodeServices.domain: give the domain under which your DNS has each node, such as mq.example.org" -}}
{{- end -}}
{{- if and $ports (not $v.nodeServices.host) (not $v.nodeServices.domain) -}}
{{- $wrong = append $wrong "nodeServices.host: give the name or address of a machine, or nodeServices.domain" -}}
{{- end -}}
{{- if and $ports $v.nodeServices.host $v.nodeServices.domain -}}
{{- $wrong = append $wrong "nodeServices: give host or domain, not both" -}}
{{- end -}}
{{- if and $v.nodeServices.enabled (not $ports) $v.nodeServices.host -}}
{{- $wrong = append $wrong "nodeServices.host: is for type=NodePort, where ports tell nodes apart; give nodeServices.domain" -}}
{{- end -}}
{{- if $ports -}}
{{- $last := sub $replicas 1 -}}
{{- $before := list -}}
{{- range $listener := include "quorate.clientPorts" . | fromYamlArray -}}
{{- $first := include "quorate.nodePort" (dict "root" $ "ordinal" 0 "name" .name) | int -}}
{{- if gt (add $first $last) 65535 -}}
{{- $wrong = append $wrong (printf "nodeServices.nodePorts.%s: %d nodes take %d to %d, and the last port is 65535" (replace "nats-tls" "natsTls" .name) $replicas $first (add $first $last)) -}}
{{- end -}}
{{- range $other := $before -}}
{{- if and (le $first (add $other.first $last)) (le $other.first (add $first $last)) -}}
{{- $wrong = append $wrong (printf "nodeServices.nodePorts: %d nodes take %d to %d for %s and %d to %d for %s; give ports that do not overlap" $replicas $other.first (add $other.first $last) $other.name $first (add $first $last) $listener.name) -}}
{{- end -}}
{{- end -}}
{{- $before = append $before (dict "name" .name "first" $first) -}}
{{- end -}}
{{- end -}}
{{- if and $v.nodeServices.enabled $v.networkPolicy.enabled (not $v.networkPolicy.anyClient) (not $v.networkPolicy.extraIngress) -}}
{{- $wrong = append $wrong "nodeServices: networkPolicy.anyClient=false lets in pods alone; give networkPolicy.extraIngress for the addresses of clients, or anyClient=true" -}}
{{- end -}}
{{- $definitions := list -}}
{{- range $place := list $v.definitions.inline $v.definitions.existingSecret $v.definitions.existingConfigMap -}}
{{- if $place -}}{{- $definitions = append $definitions $place -}}{{- end -}}
{{- end -}}
{{- if gt (len $definitions) 1 -}}
{{- $wrong = append $wrong "definitions: give one of definitions.inline, definitions.existingSecret and definitions.existingConfigMap" -}}
{{- end -}}
{{- if and $v.definitions.onUpgrade (not $definitions) -}}
{{- $wrong = append $wrong "definitions.onUpgrade: there is nothing to import; give definitions.inline, existingSecret or existingConfigMap" -}}
{{- end -}}
{{- if and $v.backup.enabled (eq (not $v.backup.existingClaim) (not $v.backup.size)) -}}
{{- $wrong = append $wrong "backup: give one of backup.existingClaim and backup.size" -}}
{{- end -}}
{{- if and (or $v.backup.existingClaim $v.backup.size $v.backup.upload.image) (not $v.backup.enabled) -}}
{{- $wrong = append $wrong "backup.enabled: is false although where to is given; set it to true, or leave the rest away" -}}
{{- end -}}
{{- if ne (empty $v.backup.upload.image) (empty $v.backup.upload.command) -}}
{{- $wrong = append $wrong "backup.upload: give image and command, or neither" -}}
{{- end -}}
{{- range $key := list "node" "cluster" "data_dir" "http" "http_advertise" "amqp" "amqps" "amqp_advertise" "https" "nats" "nats_tls" "nats_advertise" "nats_monitor" "peer" "peers" "join" "secret" "secret_file" "default_user" "default_password" "default_password_file" "previous_secret_file" "previous_default_password_file" "tls" -}}
{{- if hasKey $v.extraConfig $key -}}
{{- $wrong = append $wrong (printf "extraConfig.%s: is the chart's own to set; see the values for listeners, tls, secrets and config" $key) -}}
{{- end -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n\nThese values cannot be used:\n  - %s\n" (join "\n  - " $wrong)) -}}
{{- end -}}
{{- end -}}
