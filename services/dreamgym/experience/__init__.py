"""The experience model as a service: it plays the environment (the dream), annotates episodes and writes tasks."""
