{{- define "ckpt-exporter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "ckpt-exporter.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "ckpt-exporter.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "ckpt-exporter.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "ckpt-exporter.selector" -}}
app.kubernetes.io/name: {{ include "ckpt-exporter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ckpt-exporter.labels" -}}
{{ include "ckpt-exporter.selector" . }}
app.kubernetes.io/component: exporter
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "ckpt-exporter.serviceAccount" -}}
{{- default (ternary (include "ckpt-exporter.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- define "ckpt-exporter.priorityClass" -}}
{{- default (ternary (include "ckpt-exporter.fullname" .) "" .Values.priorityClass.create) .Values.priorityClass.name }}
{{- end }}

{{- define "ckpt-exporter.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* The volumes that pods have mounted, as the kubelet lays them out. */ -}}
{{- define "ckpt-exporter.volumesPath" -}}
{{ .Values.volumes.kubeletDirectory }}/pods/*/volumes/kubernetes.io~csi/*/mount{{ with .Values.volumes.path }}/{{ trimAll "/" . }}{{ end }}
{{- end }}

{{- /* The configuration file. */ -}}
{{- define "ckpt-exporter.config" -}}
{{- if and .Values.volumes.enabled (not .Values.readAll) }}
{{- fail "volumes.enabled needs readAll: true, because the kubelet's directory is root's alone" }}
{{- end }}
{{- $directories := .Values.directories }}
{{- if .Values.volumes.enabled }}
{{- $directories = append $directories (dict "name" .Values.volumes.name "path" (include "ckpt-exporter.volumesPath" .)) }}
{{- end }}
{{- $own := dict "web" (dict "listen_address" (printf ":%d" (int .Values.port))) }}
{{- if $directories }}{{ $_ := set $own "directories" $directories }}{{ end }}
{{- $config := mergeOverwrite (deepCopy .Values.config) $own }}
{{- if not (or $directories (dig "include" "directory" "" $config)) }}
{{- fail "nothing to watch: set directories (or volumes.enabled, or config.include.directory)" }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- /* What to mount: the part of each directory above its first wildcard, and hostPaths; a list in JSON. */ -}}
{{- define "ckpt-exporter.hostPaths" -}}
{{- $paths := .Values.hostPaths }}
{{- if .Values.mountDirectories }}
{{- range .Values.directories }}
{{- $paths = append $paths (regexReplaceAll "/[^/]*[*?\\[].*$" .path "") }}
{{- end }}
{{- end }}
{{- if .Values.volumes.enabled }}
{{- $paths = append $paths (printf "%s/pods" .Values.volumes.kubeletDirectory) }}
{{- end }}
{{- $paths = $paths | uniq | sortAlpha }}
{{- $needed := list }}
{{- range $path := $paths }}
{{- if or (eq $path "") (eq $path "/") }}{{ fail "a directory with a wildcard right below / cannot be mounted: set mountDirectories: false and hostPaths" }}{{ end }}
{{- $covered := false }}
{{- range $needed }}{{ if hasPrefix (printf "%s/" (trimSuffix "/" .)) $path }}{{ $covered = true }}{{ end }}{{ end }}
{{- if not $covered }}{{ $needed = append $needed $path }}{{ end }}
{{- end }}
{{- toJson $needed }}
{{- end }}
