"""Engines on a bundle's packages: what all have in common, and the one on functions of Core ML packages."""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ane.backends.base import Backend, ForwardingBackend, FunctionSet, RowLimit, Stage, check_inputs
from ane.backends.decoding import Decoder
from ane.backends.denoising import Denoiser, bind_separately
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.fallback import FallbackDecoder, FallbackDenoiser, PlacementPolicy
from ane.backends.packaged.functions import EngineRefusalError, PackageFunction, Runtime
from ane.backends.packaged.golden import FILE as PROBES
from ane.backends.packaged.selection import describe_packages, select_packages
from ane.bundles.hashes import check_hashes
from ane.bundles.package_records import PackageFolder, PackageRecord
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

LOGGER = logging.getLogger(__name__)
STEP_KINDS = {"io": "step", "state": "state"}  # kind of kv-cache → kind of function that steps the decoder


class PackagedEngine(ForwardingBackend):
    """Runs the networks that have a package there, and the others on ``fallback``.

    Args:
        packages: by network. runtime: its name. fallback: also returns attention, which is one pass a chunk or window
            and which no package returns, and the decoder's tables.
        keep: keep what is loaded of released networks.
        unpublished: Packages of the model to use in place of those in its bundle.
    """

    returns_attention = True

    def __init__(
        self,
        model: "Bundle",
        packages: dict[str, PackageRecord],
        runtime: str,
        fallback: Backend,
        keep: bool,
        unpublished: PackageFolder | None = None,
    ):
        self.folder: Path = unpublished.path if unpublished else model.path
        self.model, self.packages, self.fallback, self.keep = model, packages, fallback, keep
        self.stages, self.name = model.family.stages, describe_packages(runtime, packages, model)
        self._tables: dict[str, dict[str, np.ndarray]] = {}
        self._verified: set[str] = set()

    @abstractmethod
    def _call(self, declared: Stage, stage: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
        """Return what runs a stage of a network that has a package."""

    def _move_on(self, network: str, error: UserError) -> None:
        """After an error of a network's package: choose what replaces the function, or the network; or raise it."""
        raise error

    @abstractmethod
    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> Decoder:
        """A decoder on its package."""

    @abstractmethod
    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        """A denoiser of one utterance on its package."""

    @abstractmethod
    def _load(self, network: str) -> None:
        """Load what is known to be needed of a network's package."""

    @abstractmethod
    def _unload(self, network: str) -> None:
        """Free what is loaded of a network's package."""

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        declared = self.stages.calls[stage]
        check_inputs(stage, declared, inputs)
        while declared.network in self.packages:
            try:
                return self._call(declared, stage)(inputs)
            except UserError as error:
                self._move_on(declared.network, error)
        return self.fallback.run(stage, **inputs)

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        make = self._decoder if self.stages.decoder.network in self.packages else self.fallback.decoder
        return make(lanes, capacity, prefixes, max_prefix_length)

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        if self.stages.denoiser.network not in self.packages:
            return self.fallback.denoiser(latents, conditioning, frames)
        return bind_separately(lambda rows, length: self._denoiser(rows, conditioning, length), latents, frames)

    def load(self, *networks: str) -> None:
        for network in networks:
            if network in self.packages:
                self._load(network)
        self.fallback.load(*(network for network in networks if network not in self.packages))

    def release(self, *networks: str) -> None:
        self.fallback.release(*networks)
        for network in () if self.keep else networks or tuple(self.packages):
            if network in self.packages:
                self._tables.pop(network, None)
                self._unload(network)

    def table(self, network: str, key: str) -> np.ndarray:
        """The parameter with this key in the network's state dict, float32."""
        tables = self._tables.setdefault(network, {})
        if key not in tables:
            tables[key] = self.model.tensors(network)[key].float().numpy()
        return tables[key]

    def verified_package(self, network: str) -> PackageRecord:
        """A network's package. Raises UserError, when it is first asked for, if a file of it is damaged."""
        package = self.packages[network]
        if package.path not in self._verified:
            check_hashes(self.folder, package.files)
            self._verified.add(package.path)
        return package


class PackagedBackend(PackagedEngine):
    """Runs the stages on the fixed-shape functions of a bundle's Core ML packages.

    Args:
        runtime: loads the functions: Core ML, or the interpreter of its packages.
        fallback: runs the networks that have no package.
        precision: of the packages to use; "auto": the first that the bundle has of each network.
        cache: kind of kv-cache, "io" or "state"; "auto": the only one that the bundle has; of both, see
            ``prefer_state``.
        compute_units: where Core ML may run all networks; None: what the bundle states.
        only: names of the functions to use; None: all.
        keep: keep functions of released networks loaded.
        prefer_state: of packages with both, "auto" means state if they have golden probes: then the runtime proves each
            function when it first loads it, and a state that fails, or is slower, gives way to io.
        auto_fallback: a function that cannot run where it should is replaced (``PlacementPolicy``), or its network runs
            on ``fallback``, for as long as the backend exists. False: the error is raised.
        unpublished: Packages of the model to use in place of those in its bundle.

    Raises:
        UserError: the bundle has no packages, or none of that precision or cache.
    """

    def __init__(
        self,
        model: "Bundle",
        runtime: Runtime,
        fallback: Backend,
        precision: str = "auto",
        cache: str = "auto",
        compute_units: str | None = None,
        only: frozenset[str] | None = None,
        keep: bool = False,
        auto_fallback: bool = False,
        prefer_state: bool = False,
        unpublished: PackageFolder | None = None,
    ):
        chosen = select_packages(model, precision, unpublished and unpublished.packages)
        super().__init__(model, chosen, runtime.name, fallback, keep, unpublished)
        self.runtime, self.cache, self.only = runtime, cache, only
        self.blocks_python = runtime.name == "coreml"
        self.auto_fallback, self.prefer_state = auto_fallback, prefer_state
        self._compute_units = compute_units
        self._units: dict[str, PlacementPolicy] = {}
        self._functions: dict[str, list[PackageFunction]] = {}

    def _call(self, declared: Stage, stage: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
        return partial(declared.packaged, self._function_set(declared.network), stage)

    def _function_set(self, network: str) -> FunctionSet:
        return FunctionSet(partial(self.functions, network), partial(self.table, network))

    def row_limit(self, stage: str) -> RowLimit:
        """Return the largest bucket of a stage, or no limit for a network that has no package."""
        declared = self.stages.calls[stage]
        package = self.packages.get(declared.network)
        records = package.functions.values() if package else ()
        lengths = [record.bucket[declared.unit] for record in records if record.kind == stage]
        return RowLimit(max(lengths), declared.divides) if lengths else RowLimit()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        bind = partial(super().decoder, lanes, capacity, prefixes, max_prefix_length)
        network = self.stages.decoder.network
        bound_again = network in self.packages and (self.auto_fallback or self.prefer_state)
        return FallbackDecoder(bind, partial(self._move_on, network)) if bound_again else bind()

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        bind = partial(super().denoiser, latents, conditioning, frames)
        network = self.stages.denoiser.network
        moves = network in self.packages and self.auto_fallback
        return FallbackDenoiser(bind, partial(self._move_on, network)) if moves else bind()

    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> PackagedDecoder:
        network = self.stages.decoder.network
        package, shape = self.packages[network], self.model.config(network).decoder_shape
        dtype = np.float32 if self.runtime.in_place or package.precision == "fp32" else np.float16
        return PackagedDecoder(
            self.functions(network, "prefill"),
            self._step_functions(network, lanes),
            self.functions(network, "store"),
            lanes,
            capacity,
            (shape.layers, shape.heads, shape.head_width),
            package.scale,
            dtype,
            prefixes,
            max_prefix_length,
            self.functions(network, "memory"),
            not self.keep,
        )

    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        stage = self.stages.denoiser
        return stage.packaged(self._function_set(stage.network), latents, conditioning, frames)

    def _move_on(self, network: str, error: UserError) -> None:
        units = self.units(network) if network in self.packages else None
        if units is None or not (self.auto_fallback or units.replaces_state(error)):
            raise error
        instead = units.refuse(error)
        self._unload(network)
        if not instead:
            del self.packages[network]
            self.name = (
                describe_packages(self.runtime.name, self.packages, self.model) if self.packages else self.fallback.name
            )
        LOGGER.info("%s. %s instead.", str(error).partition("; ")[0], instead or f"Running {network} on torch")

    def units(self, network: str) -> PlacementPolicy:
        """Where the functions of a network's package run."""
        if network not in self._units:
            self._units[network] = PlacementPolicy(self.packages[network], self.runtime, self._compute_units)
        return self._units[network]

    def _load(self, network: str) -> None:
        """Check the files alone: which functions are needed depends on the text."""
        self.verified_package(network)

    def _unload(self, network: str) -> None:
        if self._functions.pop(network, None):
            self.runtime.unload(self.folder / self.packages[network].path)

    def functions(self, network: str, kind: str) -> list[PackageFunction]:
        """The functions of a kind, one per bucket; none when the package was converted without that kind."""
        if network not in self._functions:
            package = self.verified_package(network)
            path = self.folder / package.path
            self._functions[network] = [
                PackageFunction(
                    self.runtime, path, name, package.functions[name].bucket, units, package.functions[name].kind
                )
                for name, units in self.units(network).by_function.items()
                if self.only is None or name in self.only
            ]
        return [function for function in self._functions[network] if function.kind == kind]

    def _step_functions(self, network: str, lanes: int) -> list[PackageFunction]:
        kinds = [STEP_KINDS[self.cache]] if self.cache != "auto" else list(STEP_KINDS.values())
        found = [
            steps
            for kind in kinds
            if (
                steps := [step for step in self.functions(network, kind) if kind == "step" or "capacity" in step.bucket]
            )
        ]
        if found:
            proven = self.prefer_state and (self.folder / self.packages[network].path / PROBES).is_file()
            if proven and len(found) > 1:
                self._refuse_slower_state(network, *found, lanes)
            return found[-1 if proven else 0]
        raise UserError(
            f"{self.model.name} has no decoder steps with the cache {self.cache}: convert it again with "
            f"the cache {self.cache}, or use cache=auto"
        )

    def _refuse_slower_state(
        self, network: str, steps: list[PackageFunction], states: list[PackageFunction], lanes: int
    ) -> None:
        """Raise EngineRefusalError for the state if a step with the cache on the host took less time in its first load.

        Compared are functions of as many columns as the lanes take, with the middle number of slots.
        """
        width = min((step.bucket["columns"] for step in steps), key=lambda count: (count < lanes, abs(count - lanes)))
        pairs = [
            (state, step)
            for state in states
            for step in steps
            if step.bucket["columns"] == width
            and all(state.bucket[length] == step.bucket[length] for length in ("columns", "slots"))
        ]
        if not pairs:
            return
        state, step = sorted(pairs, key=lambda pair: pair[0].bucket["slots"])[len(pairs) // 2]
        store = next(
            store for store in self.functions(network, "store") if store.bucket["capacity"] == state.bucket["capacity"]
        )
        in_state, on_host = state.seconds + store.seconds * min(lanes, width) / store.bucket["columns"], math.inf
        with suppress(EngineRefusalError):
            on_host = step.seconds
        if on_host < in_state:
            raise EngineRefusalError(
                f"A step with the cache in a state ({state.name} and its share of a store) takes "
                f"{1000 * in_state:.2f} ms on {state.compute_units}, one with the cache on the host "
                f"{1000 * on_host:.2f} ms",
                function=state.name,
            )
