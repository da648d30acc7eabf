"""Trainer workers: Celery dispatches, a child process trains, every write carries the attempt's fencing token."""
