{{- define "weightsync.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "weightsync.operator" -}}{{ include "weightsync.name" . }}-operator{{- end }}

{{- define "weightsync.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}
{{- else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The label by which pods ask for an agent, and by which policies know pods that carry one. */}}
{{- define "weightsync.injectLabel" -}}weightsync.io/inject{{- end }}

{{/* What a pod may say of its agent's memory. */}}
{{- define "weightsync.memoryPattern" -}}^[1-9][0-9]*([kMGTPE]|[KMGTPE]i)?${{- end }}

{{/* Whether the agent is injected: "yes" or nothing. */}}
{{- define "weightsync.injects" -}}
{{- $mode := .Values.agent.injection.mode }}
{{- $able := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}
{{- if and (eq $mode "Enabled") (not $able) }}
{{- fail "agent.injection.mode is Enabled, but this API server has no MutatingAdmissionPolicy v1 (Kubernetes 1.36): write Auto, and add the agent to pod templates as docs/agent-sidecar.md shows" }}
{{- end }}
{{- if and .Values.agent.namespaces $able (ne $mode "Disabled") }}yes{{ end }}
{{- end }}

{{- define "weightsync.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "weightsync.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What the operator may do in the namespaces that it serves. */}}
{{- define "weightsync.operatorRules" -}}
- apiGroups: [weightsync.io]
  resources: [weightsyncs]
  verbs: [get, list, watch]
- apiGroups: [weightsync.io]
  resources: [weightsyncs/status]
  verbs: [patch]
- apiGroups: [weightsync.io]
  resources: [weightsyncslices]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
