"""Deploy the server of `ane serve` on a cluster with Ray Serve, which starts as many copies of it as requests need.

    serve run ane.cluster.deployment:application models=heart most_replicas=4

Every copy (*replica*) is the whole application of ``ane.server``, and loads its models separately. Ray Serve passes
each request to a replica, streams the answer, and starts and stops replicas. It is part of Ray (Apache-2.0). Ray has no
tokens, so make sure that only the machines of the cluster can reach Ray's ports.
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
    """The number of replicas, and the resources of a replica."""

    least: int = 1
    most: int = 1
    requests: float = 16  # parallel requests per replica; if there are more, Ray Serve starts another replica
    cpus: float = 1  # CPUs and GPUs per replica, as Ray counts them
    gpus: float = 0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1:
            raise UserError(
                f"replicas must be L to M with 0 ≤ L ≤ M and 1 ≤ M, got {self.least} to {self.most}", "replicas"
            )


class SpeechReplica:
    """A replica, with the server application and the thread that runs its models."""

    async def __init__(self, settings: ServerSettings):
        check_exposure(settings)
        check_models(settings)
        self.service = Service(replace(settings, host=listening_host()))
        await self.service.preload()

    def __serve_build_asgi_app__(self) -> Any:  # Ray Serve calls it after __init__
        return make_app(self.service)

    def check_health(self) -> None:
        """Raise RuntimeError if the thread that watches requests has ended. Ray Serve then replaces the replica."""
        if not self.service.engine.alive:
            raise RuntimeError("the thread that watches the requests has ended")


def listening_host() -> str:
    """Return the address on which Ray Serve listens.

    If it does not run yet, return the address on which it would listen.
    """
    client = _get_global_client(raise_if_no_controller_running=False) if ray.is_initialized() else None
    return (client.http_config if client else HTTPOptions()).host or "0.0.0.0"


def check_exposure(settings: ServerSettings) -> None:
    """Raise UserError if other machines can reach the server although clients need no token."""
    if not settings.token and not is_loopback(host := listening_host()):
        raise UserError(f"Ray Serve listens on {host}, where other machines reach it: give a token", "token")


def speech_application(settings: ServerSettings, replicas: ReplicaSettings | None = None) -> serve.Application:
    """Make an application to pass to ``serve.run``.

    If a model is missing on another machine of the cluster, the replica there fails, and Ray Serve reports this.

    Raises:
        UserError: Other machines can reach Ray Serve, and there is no token. Or a model is missing on this machine.
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
    """Make an application from the words KEY=VALUE on the command line of `serve run`.

    The keys ``models``, ``preload`` and ``hosts`` (names by which clients may call the server) take names with commas.
    The other keys are ``token``, ``backend``, ``lanes``, ``threads``, ``least_replicas``, ``most_replicas``,
    ``requests_per_replica``, ``cpus`` and ``gpus``.

    Raises:
        UserError: There is no such key, a value has the wrong kind, or ``speech_application`` raises it.
    """
    rest = dict(options)
    names = {key: tuple(rest.pop(key).split(",")) for key in ("models", "preload", "hosts") if key in rest}
    words = {key: rest.pop(key) for key in ("token", "backend") if key in rest}
    try:
        numbers = {key: int(rest.pop(key)) for key in ("lanes", "threads") if key in rest}
        counts = {
            name: kind(rest.pop(key))
            for key, name, kind in (
                ("least_replicas", "least", int),
                ("most_replicas", "most", int),
                ("cpus", "cpus", float),
                ("requests_per_replica", "requests", float),
                ("gpus", "gpus", float),
            )
            if key in rest
        }
    except ValueError as error:
        raise UserError(f"a number is expected: {error}") from error
    if rest:
        raise UserError(f"there is no option {', '.join(rest)}")
    settings = ServerSettings(**names, **words, **numbers)
    return speech_application(replace(settings, preload=settings.preload or settings.models), ReplicaSettings(**counts))
