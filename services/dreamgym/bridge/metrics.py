"""What the bridge counts."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

TRANSITIONS = Counter("dreamgym_bridge_transitions_total", "Actions sent to a real environment.", ["adapter"])
GUARDED = Counter("dreamgym_bridge_guarded_total", "Actions that the action policy held back.", ["verdict"])
EPISODES = Counter("dreamgym_bridge_episodes_total", "Real episodes by how they ended.", ["termination"])
REFUSED = Counter("dreamgym_bridge_refused_total", "Resets and steps refused, by cause.", ["cause"])
WORKERS_STARTED = Counter("dreamgym_bridge_workers_started_total", "Adapter processes started.", ["adapter"])
BUSY = Gauge("dreamgym_bridge_workers_busy", "Adapter processes that play an episode now.")
STEP_SECONDS = Histogram("dreamgym_bridge_step_seconds", "Duration of a real step in its adapter process.", ["adapter"])
RECORDED = Counter("dreamgym_bridge_recorded_total", "Recorded episodes stored in the replay service.")
RECORDING_FAILURES = Counter("dreamgym_bridge_recording_failures_total", "Failed attempts to store recorded episodes.")
SPOOLED = Gauge("dreamgym_bridge_spooled_episodes", "Recorded episodes that wait for the replay service.")
