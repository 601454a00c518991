#!/bin/sh
# Make or update Temporal's two databases. What is there already stays; the server starts after this has ended well.
set -eu
versions=${SCHEMA:-/etc/temporal/schema/postgresql/v12}
for database in temporal temporal_visibility; do
  temporal-sql-tool --database "$database" create-database
  temporal-sql-tool --database "$database" setup-schema --version 0.0
  temporal-sql-tool --database "$database" update-schema --schema-dir "$versions/${database#temporal_}/versioned"
done
