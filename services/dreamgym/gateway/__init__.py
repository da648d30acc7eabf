"""The platform's front door: REST, events and the dashboard for people; the `Jobs` service for trainers."""
