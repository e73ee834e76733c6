{{/* The agent's container. Takes root and role. A string that begins with CEL: is an expression on the pod. */}}
{{- define "weightsync.agentContainer" -}}
{{- $injection := .root.Values.agent.injection }}
name: weightsync-agent
image: {{ include "weightsync.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [weightsync-agent]
restartPolicy: Always
env:
  - {name: WEIGHTSYNC_ROLE, value: {{ .role }}}
  - {name: WEIGHTSYNC_PLAN, value: cluster}
  - {name: WEIGHTSYNC_LOG_LEVEL, value: {{ $injection.logLevel }}}
  {{- if eq .role "engine" }}
  - {name: WEIGHTSYNC_ENGINE_URL, value: 'CEL:"http://127.0.0.1:" + variables.enginePort'}
  {{- end }}
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  {{- range $name, $value := $injection.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
ports:
  - {name: weightsync, containerPort: 8960, protocol: TCP}
startupProbe:
  httpGet: {path: /healthz, port: weightsync}
  periodSeconds: 1
  failureThreshold: {{ $injection.startSeconds }}
livenessProbe:
  httpGet: {path: /healthz, port: weightsync}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- $resources := ternary $injection.engineResources $injection.trainerResources (eq .role "engine") }}
{{- if or $resources $injection.resourceClaims }}
resources:
  {{- with $resources }}{{ toYaml . | nindent 2 }}{{ end }}
  {{- with $injection.resourceClaims }}
  claims:
    {{- range . }}
    - {name: {{ .name }}}
    {{- end }}
  {{- end }}
{{- end }}
securityContext:
  {{- /* What is added counts for root alone: a program that another user starts begins without it. */}}
  {{- if $injection.ipcLock }}
  runAsUser: 0
  {{- end }}
  runAsNonRoot: {{ not $injection.ipcLock }}
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  seccompProfile: {type: RuntimeDefault}
  capabilities:
    drop: [ALL]
    {{- if $injection.ipcLock }}
    add: [IPC_LOCK]
    {{- end }}
volumeMounts:
  - {name: weightsync, mountPath: /dev/weightsync}
  - {name: weightsync-token, mountPath: /var/run/secrets/weightsync, readOnly: true}
  - {name: weightsync-api, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* What the agent's container and the others share, and the agent's tokens. */}}
{{- define "weightsync.agentVolumes" -}}
- name: weightsync
  emptyDir:
    medium: Memory
    {{- with .Values.agent.injection.volumeSizeLimit }}
    sizeLimit: {{ . | quote }}
    {{- end }}
- name: weightsync-token
  projected:
    sources:
      - serviceAccountToken: {audience: weightsync, path: token, expirationSeconds: 3600}
- name: weightsync-api
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{/* A value as a CEL expression. Takes path, the type's name, and value. Quantities stand in maps, all else in objects.
     How much memory an agent takes is its model's affair, so a pod may say it. */}}
{{- define "weightsync.cel" -}}
{{- if kindIs "map" .value -}}
{{- if or (hasSuffix ".limits" .path) (hasSuffix ".requests" .path) -}}
{ {{- range $index, $key := keys .value | sortAlpha }}{{ if $index }}, {{ end }}{{ toRawJson $key }}: {{ if eq $key "memory" }}variables.agentMemory != "" ? string(variables.agentMemory) : {{ end }}{{ get $.value $key | toString | toRawJson }}{{ end -}} }
{{- else -}}
{{ .path }}{ {{- range $index, $key := keys .value | sortAlpha }}{{ if $index }}, {{ end }}{{ $key }}: {{ include "weightsync.cel" (dict "path" (printf "%s.%s" $.path $key) "value" (get $.value $key)) }}{{ end -}} }
{{- end -}}
{{- else if kindIs "slice" .value -}}
[ {{- range $index, $each := .value }}{{ if $index }}, {{ end }}{{ include "weightsync.cel" (dict "path" $.path "value" $each) }}{{ end -}} ]
{{- else if kindIs "string" .value -}}
{{- if hasPrefix "CEL:" .value }}{{ trimPrefix "CEL:" .value }}{{ else }}{{ toRawJson .value }}{{ end -}}
{{- else if kindIs "bool" .value -}}
{{ .value }}
{{- else -}}
{{ int64 .value }}
{{- end -}}
{{- end }}
