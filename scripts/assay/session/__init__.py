"""One life of one server: lease, supervisor, engines, configuration read-back, counters, telemetry."""
