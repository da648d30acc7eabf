"""The `dreamgym` command: a customer of the gateway, and the starter of the platform on one machine."""
