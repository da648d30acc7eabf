#!/bin/sh
# Fail if services/dreamgym/v1 is not what proto/ generates: generated_is_current.sh BIN
set -eu
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"$(dirname "$0")/generate.sh" "$1" "$fresh"
if ! diff -rq --exclude=__pycache__ "$fresh/dreamgym/v1" services/dreamgym/v1; then
  echo "services/dreamgym/v1 is not what proto/ generates: run 'make proto' and commit the result." >&2
  exit 1
fi
