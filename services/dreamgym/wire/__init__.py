"""The services' common wire: generated stubs' converters, channels, servers, settings, logs."""
