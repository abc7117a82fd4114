{{- define "quire.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (.Values.nameOverride | default .Chart.Name) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (.Values.nameOverride | default .Chart.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* The name of the headless service. Pods are NAME.SERVICE.NAMESPACE.svc. */ -}}
{{- define "quire.bookies" -}}
{{- printf "%s-bookies" (include "quire.fullname" .) -}}
{{- end -}}

{{- define "quire.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quire.labels" -}}
{{ include "quire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "quire.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- /* The sets of bookies: one for each rack, or a single one. */ -}}
{{- define "quire.sets" -}}
{{- $name := printf "%s-bookie" (include "quire.fullname" .) -}}
{{- $sets := list -}}
{{- range .Values.racks -}}
{{- $sets = append $sets (dict "name" (printf "%s-%s" $name .name) "replicas" .replicas "location" .location "nodeSelector" (.nodeSelector | default dict)) -}}
{{- else -}}
{{- $sets = append $sets (dict "name" $name "replicas" .Values.bookie.replicas "location" "" "nodeSelector" dict) -}}
{{- end -}}
{{- toJson $sets -}}
{{- end -}}

{{- /* The data directories of a bookie, by the names of their volumes. */ -}}
{{- define "quire.disks" -}}
{{- $disks := list -}}
{{- if eq (int .Values.bookie.storage.disks) 1 -}}
{{- $disks = append $disks (dict "volume" "data" "path" "/data") -}}
{{- else -}}
{{- range $number := untilStep 1 (int (add1 .Values.bookie.storage.disks)) 1 -}}
{{- $disks = append $disks (dict "volume" (printf "data-%d" $number) "path" (printf "/data/%d" $number)) -}}
{{- end -}}
{{- end -}}
{{- toJson $disks -}}
{{- end -}}

{{- /* The lines of a table in TOML. Numbers of YAML are floats for Helm, but integers in TOML. */ -}}
{{- define "quire.toml" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ int64 $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end -}}

{{- define "quire.tls.toml" -}}
http_token_file = "/run/quire/http/token"
http_tls_cert = "/run/quire/tls/tls.crt"
http_tls_key = "/run/quire/tls/tls.key"
{{- end -}}

{{- /* What all pods have in common, before their containers. */ -}}
{{- define "quire.pod" -}}
automountServiceAccountToken: false
# Otherwise Kubernetes sets variables for its services, which Quire may take for its configuration.
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "quire.container" -}}
image: {{ include "quire.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- /* The variables of all containers. */ -}}
{{- define "quire.environment" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- if .Values.metadata.authSecret }}
- name: QUIRE_ZOOKEEPER_AUTH_FILE
  value: /run/quire/zookeeper/auth
{{- end }}
{{- end -}}

{{- define "quire.mounts" -}}
- name: configuration
  mountPath: /etc/quire
  readOnly: true
{{- if .Values.metadata.authSecret }}
- name: zookeeper
  mountPath: /run/quire/zookeeper
  readOnly: true
{{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  mountPath: /run/quire/tls
  readOnly: true
{{- end }}
{{- if .Values.http.tokenSecret }}
- name: http
  mountPath: /run/quire/http
  readOnly: true
{{- end }}
{{- end -}}

{{- /* Secrets are readable for the group of the pod only: Quire refuses others. */ -}}
{{- define "quire.volumes" -}}
- name: configuration
  configMap:
    name: {{ include "quire.fullname" . }}
{{- if .Values.metadata.authSecret }}
- name: zookeeper
  secret:
    secretName: {{ .Values.metadata.authSecret }}
    defaultMode: 0440
{{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ required "tls.secret names the Secret with tls.crt, tls.key and ca.crt" .Values.tls.secret }}
    defaultMode: 0440
{{- end }}
{{- if .Values.http.tokenSecret }}
- name: http
  secret:
    secretName: {{ .Values.http.tokenSecret }}
    defaultMode: 0440
{{- else if .Values.tls.enabled }}
{{- fail "http.tokenSecret names the Secret with the token, which TLS needs" }}
{{- end }}
{{- end -}}

{{- /* A probe of a path. HTTP listens on loopback without TLS, where only the pod reaches it. */ -}}
{{- define "quire.probe" -}}
{{- if .tls -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: HTTPS
  # A name that the server accepts. The kubelet does not check the certificate.
  httpHeaders: [{name: Host, value: localhost}]
{{- else -}}
exec:
  command:
    - python
    - -c
    - import urllib.request as r; r.urlopen("http://127.0.0.1:8080{{ .path }}", timeout=4)
{{- end }}
timeoutSeconds: 5
{{- end -}}
