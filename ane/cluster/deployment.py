"""`ane serve` as a deployment of Ray Serve: copies of the server on a cluster, as many as the requests need.

    serve run ane.cluster.deployment:application models=heart most_replicas=4

Every replica is the whole application of ``ane.server`` with models of its own. Ray Serve gives a request to a replica,
streams the answer, and starts and stops replicas. Ray Serve is part of Ray (Apache-2.0). Ray itself asks nobody for a
token: its own ports must be reached by its machines alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.context import _get_global_client

from ane.server.app import make_app
from ane.server.guard import is_loopback
from ane.server.served_models import check_models
from ane.server.settings import ServerSettings
from ane.server.speech_service import Service
from ane.system.errors import UserError


@dataclass(frozen=True)
class ReplicaSettings:
    """How many replicas there are, and what each takes."""

    least: int = 1
    most: int = 1
    requests: float = 16  # that a replica should answer at a time; more start another replica
    cpus: float = 1  # of a replica, as Ray counts them, and so are the GPUs
    gpus: float = 0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1:
            raise UserError(
                f"replicas must be from 0 on, and at least one at most, got {self.least} to {self.most}", "replicas"
            )


class SpeechReplica:
    """A replica: the application, and the thread that owns its models."""

    async def __init__(self, settings: ServerSettings):
        check_exposure(settings)
        check_models(settings)
        self.service = Service(replace(settings, host=listening_host()))
        await self.service.preload()

    def __serve_build_asgi_app__(self) -> Any:  # Ray Serve calls it after __init__
        return make_app(self.service)

    def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica that raises."""
        if not self.service.engine.alive:
            raise RuntimeError("the thread of the models has ended")


def listening_host() -> str:
    """The address on which Ray Serve listens, or would if it were started now."""
    client = _get_global_client(raise_if_no_controller_running=False) if ray.is_initialized() else None
    return (client.http_config if client else HTTPOptions()).host or "0.0.0.0"


def check_exposure(settings: ServerSettings) -> None:
    """Raise UserError for a server that anybody could use."""
    if not settings.token and not is_loopback(host := listening_host()):
        raise UserError(f"Ray Serve listens on {host}, where other machines reach it: give a token", "token")


def speech_application(settings: ServerSettings, replicas: ReplicaSettings | None = None) -> serve.Application:
    """An application for ``serve.run``.

    Raises:
        UserError: a model is missing on this machine. On the others the replica fails, and Ray Serve says why. There is
            no token, and other machines reach Ray Serve.
    """
    check_exposure(settings)
    check_models(settings)
    replicas = replicas or ReplicaSettings()
    deployment = serve.deployment(
        serve.ingress()(SpeechReplica),
        name="speech",
        max_ongoing_requests=settings.limits.requests,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        graceful_shutdown_timeout_s=settings.limits.drain,
        autoscaling_config={
            "min_replicas": replicas.least,
            "max_replicas": replicas.most,
            "target_ongoing_requests": replicas.requests,
        },
    )
    return deployment.bind(settings)


def application(options: Mapping[str, str]) -> serve.Application:
    """An application from the words KEY=VALUE of `serve run`.

    ``models``, ``preload`` and ``hosts``, by which clients may call the server (names with commas), ``token``,
    ``backend``, ``lanes``, ``threads``, ``least_replicas``, ``most_replicas``, ``requests_per_replica``, ``cpus``,
    ``gpus``.

    Raises:
        UserError: another key, a value of the wrong kind, or as ``speech_application``.
    """
    given = dict(options)
    names = {key: tuple(given.pop(key).split(",")) for key in ("models", "preload", "hosts") if key in given}
    words = {key: given.pop(key) for key in ("token", "backend") if key in given}
    try:
        numbers = {key: int(given.pop(key)) for key in ("lanes", "threads") if key in given}
        counts = {
            name: kind(given.pop(key))
            for key, name, kind in (
                ("least_replicas", "least", int),
                ("most_replicas", "most", int),
                ("cpus", "cpus", float),
                ("requests_per_replica", "requests", float),
                ("gpus", "gpus", float),
            )
            if key in given
        }
    except ValueError as error:
        raise UserError(f"a number is expected: {error}") from error
    if given:
        raise UserError(f"there is no option {', '.join(given)}")
    settings = ServerSettings(**names, **words, **numbers)
    return speech_application(replace(settings, preload=settings.preload or settings.models), ReplicaSettings(**counts))
