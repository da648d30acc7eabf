# Two commands are enough: `make demo` and `make test`. The others are listed by `make help`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help proto

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

proto: ## Generate services/dreamgym/v1 from proto/
	PATH=$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -Iproto --python_out=services --grpc_python_out=services \
	  --mypy_out=readable_stubs:services --mypy_grpc_out=services proto/dreamgym/v1/*.proto
	@touch services/dreamgym/v1/__init__.py
