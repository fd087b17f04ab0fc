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

{{- /* Nodes with the vendor's devices: any one of these labels. */ -}}
{{- define "ckpt-exporter.gpuNodes" -}}
{{- $labels := dict
  "nvidia" (list "nvidia.com/gpu.present" "feature.node.kubernetes.io/pci-10de.present")
  "ascend" (list "feature.node.kubernetes.io/pci-1200_19e5.present")
  "amd" (list "feature.node.kubernetes.io/amd-gpu" "feature.node.kubernetes.io/pci-1200_1002.present" "feature.node.kubernetes.io/pci-0380_1002.present") }}
{{- $exist := dict "nvidia" (list "cloud.google.com/gke-accelerator") "ascend" (list "accelerator-type") "amd" (list) }}
{{- $vendor := .Values.gpu.vendor }}
{{- if ne $vendor "none" }}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range get $labels $vendor }}
      - matchExpressions:
          - {key: {{ . }}, operator: In, values: ["true"]}
      {{- end }}
      {{- range get $exist $vendor }}
      - matchExpressions:
          - {key: {{ . }}, operator: Exists}
      {{- end }}
{{- end }}
{{- end }}

{{- /* Who is asked: the configuration's own word, else the value, else what suits the vendor. */ -}}
{{- define "ckpt-exporter.gpuBackend" -}}
{{- $suits := ternary "prometheus" "auto" (has .Values.gpu.vendor (list "ascend" "amd")) }}
{{- dig "gpu" "backend" (default $suits .Values.gpu.backend) .Values.config }}
{{- end }}

{{- define "ckpt-exporter.gpuPort" -}}
{{- $url := .Values.gpu.url }}
{{- if $url }}
{{- regexFind ":[0-9]+" (regexFind "//[^/]*" $url) | trimPrefix ":" | default "80" }}
{{- else }}
{{- int (default (get (dict "ascend" 8082 "amd" 5000 "nvidia" 9400 "none" 9400) .Values.gpu.vendor) .Values.gpu.exporter.port) }}
{{- end }}
{{- end }}

{{- define "ckpt-exporter.gpu" -}}
{{- $backend := include "ckpt-exporter.gpuBackend" . }}
backend: {{ $backend }}
{{- if eq $backend "prometheus" }}
{{- with .Values.gpu.url }}
url: {{ . }}
{{- else }}
{{- if and (not .Values.gpu.exporter.selector) (not (dig "gpu" "url" "" .Values.config)) }}
{{- fail (printf "gpu.vendor %s asks the vendor's exporter on the node: set gpu.exporter.namespace and gpu.exporter.selector, or gpu.url, or gpu.backend=none" .Values.gpu.vendor) }}
{{- end }}
url: http://{{ include "ckpt-exporter.fullname" . }}-gpu.{{ .Values.gpu.exporter.namespace | default .Release.Namespace }}.svc:{{ include "ckpt-exporter.gpuPort" . }}/metrics
{{- end }}
{{- end }}
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
{{- $gpu := dict "gpu" (include "ckpt-exporter.gpu" . | fromYaml) }}
{{- $config := mergeOverwrite $gpu (deepCopy .Values.config) $own }}
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
