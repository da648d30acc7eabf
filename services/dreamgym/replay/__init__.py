"""The replay service: transitions with provenance, searchable by similarity of (state, action)."""
