"""The platform on one machine: PostgreSQL, Valkey and every service as supervised processes."""
