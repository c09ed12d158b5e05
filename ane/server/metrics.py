"""Counts and times of a server, as Prometheus reads them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """All of them are changed in the event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("ane_requests", "Requests, by what was asked for and how they ended",
                                ["kind", "outcome"], registry=self.registry)
        self.active = Gauge("ane_active_requests", "Requests that wait or are being spoken", registry=self.registry)
        self.models = Gauge("ane_loaded_models", "Models in memory", registry=self.registry)
        self.first_sound = Histogram("ane_first_sound_seconds", "From a request to its first sound", ["model"],
                                     buckets=SECONDS, registry=self.registry)
        self.sound = Counter("ane_sound_seconds", "Seconds of sound", ["model"], registry=self.registry)
        self.characters = Counter("ane_characters", "Characters of the texts", ["model"], registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)
