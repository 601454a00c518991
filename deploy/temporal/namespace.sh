#!/bin/sh
# Make the namespace and the search attributes of runs, once the server is in service; workers start after this has succeeded.
set -eu
tries=60
until temporal operator cluster health; do
  tries=$((tries - 1))
  [ "$tries" -gt 0 ]
  sleep 1
done
temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1 ||
  temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$RETENTION"
# By these, lists of runs show and find the agent, the status and the forks of a run. Without them, runs work all the same.
temporal operator search-attribute create --namespace "$TEMPORAL_NAMESPACE" \
  --name MulliganAgent --type Keyword --name MulliganStatus --type Keyword --name MulliganForkedFrom --type Keyword
