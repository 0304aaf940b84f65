{{/* The names and labels of one part: dict "root" $ "part" "proxy". */}}
{{- define "roadweave.name" -}}
{{- printf "%s-%s" (.root.Release.Name | trunc 40 | trimSuffix "-") .part | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "roadweave.selector" -}}
app.kubernetes.io/name: roadweave
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "roadweave.labels" -}}
{{ include "roadweave.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* The image with the suffix of a part: dict "root" $ "suffix" "-controller". */}}
{{- define "roadweave.image" -}}
{{- $image := .root.Values.image -}}
{{- printf "%s%s:%s" $image.repository .suffix (default .root.Chart.AppVersion $image.tag) -}}
{{- end }}

{{/* What the restricted profile of Kubernetes asks of a container. */}}
{{- define "roadweave.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What it asks of a pod. */}}
{{- define "roadweave.pod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
# Once: later it would open the keys to the group at every mount.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* What lets a namespace read figures: its name. */}}
{{- define "roadweave.figures" -}}
- from:
    - namespaceSelector:
        matchLabels: { kubernetes.io/metadata.name: {{ . }} }
  ports:
    - { protocol: TCP, port: metrics }
{{- end }}
