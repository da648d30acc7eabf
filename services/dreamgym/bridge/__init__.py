"""The service that leads to the real environments."""
