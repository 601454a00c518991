#!/bin/sh
# Make the namespace, once the server is in service; workers start after this has ended well.
set -eu
tries=60
until temporal operator cluster health; do
  tries=$((tries - 1))
  [ "$tries" -gt 0 ]
  sleep 1
done
temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1 ||
  temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$RETENTION"
