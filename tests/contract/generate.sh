#!/bin/sh
# Generate the protobuf stubs: generate.sh BIN OUTPUT
set -eu
PATH="$1:$PATH" "$1/python" -m grpc_tools.protoc -Iproto --python_out="$2" --grpc_python_out="$2" \
  --mypy_out="readable_stubs:$2" --mypy_grpc_out="$2" proto/dreamgym/v1/*.proto
touch "$2/dreamgym/v1/__init__.py"
