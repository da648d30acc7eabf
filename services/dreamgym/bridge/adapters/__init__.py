"""Adapters: one real environment each behind the same five calls."""
