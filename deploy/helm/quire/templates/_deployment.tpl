{{- /* A Deployment of one of the processes that keep no data: autorecovery and the HTTP API. */ -}}
{{- define "quire.deployment" -}}
{{- $component := .component -}}
{{- $values := index .root.Values $component -}}
{{- with .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "quire.fullname" . }}-{{ $component }}
  labels:
    {{- include "quire.labels" . | nindent 4 }}
    app.kubernetes.io/component: {{ $component }}
spec:
  replicas: {{ $values.replicas }}
  selector:
    matchLabels:
      {{- include "quire.selector" . | nindent 6 }}
      app.kubernetes.io/component: {{ $component }}
  template:
    metadata:
      labels:
        {{- include "quire.selector" . | nindent 8 }}
        app.kubernetes.io/component: {{ $component }}
      annotations:
        checksum/configuration: {{ include (print .Template.BasePath "/configmap.yaml") . | sha256sum }}
    spec:
      terminationGracePeriodSeconds: 30
      {{- include "quire.pod" . | nindent 6 }}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- include "quire.selector" . | nindent 20 }}
                    app.kubernetes.io/component: {{ $component }}
      containers:
        - name: {{ $component }}
          {{- include "quire.container" . | nindent 10 }}
          args: {{ $.args }}
          env:
            {{- include "quire.environment" . | nindent 12 }}
            {{- if .Values.tls.enabled }}
            - name: {{ $.namesVariable }}
              value: {{ join "," (concat (list "localhost" "$(POD_IP)") $.names) }}
            {{- end }}
          {{- if .Values.tls.enabled }}
          ports:
            - name: http
              containerPort: 8080
          {{- end }}
          livenessProbe:
            {{- include "quire.probe" (dict "tls" .Values.tls.enabled "path" "/heartbeat") | nindent 12 }}
            periodSeconds: 10
            failureThreshold: 6
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            {{- include "quire.mounts" . | nindent 12 }}
      volumes:
        {{- include "quire.volumes" . | nindent 8 }}
{{- end -}}
{{- end -}}
