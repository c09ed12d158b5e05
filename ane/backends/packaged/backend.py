"""Run a model on the packages in its bundle.

``PackagedEngine`` is the base class for Core ML and ONNX packages. ``PackagedBackend`` runs Core ML packages.
"""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ane.backends.base import Backend, FunctionSet, RowLimit, Stage, check_inputs
from ane.backends.decoding import Decoder
from ane.backends.denoising import Denoiser
from ane.backends.forwarding import SharingBackend
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.fallback import FallbackDecoder, FallbackDenoiser, PlacementPolicy
from ane.backends.packaged.functions import EngineRefusalError, PackageFunction, Runtime, error_without_advice
from ane.backends.packaged.golden import FILE as GOLDEN_CASES
from ane.backends.packaged.selection import describe_packages, select_packages
from ane.bundles.hashes import check_hashes
from ane.bundles.package_records import PackageFolder, PackageRecord
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

LOGGER = logging.getLogger(__name__)
STEP_KINDS = {"io": "step", "state": "state"}  # kind of kv-cache → kind of function that computes a decoder step


class PackagedEngine(SharingBackend):
    """Runs the networks that have a package, and passes calls of all other networks to ``fallback``.

    Args:
        model: Bundle whose networks the engine runs.
        packages: Packages by network name.
        runtime: Name of the runtime, for reports.
        fallback: Backend that runs the networks without a package. It also provides the decoder's embedding tables and
            computes attention scores, because no package returns these.
        keep: Whether networks stay loaded after ``release``.
        unpublished: Packages to use instead of the bundle's packages.
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
        self.model, self.packages, self.computed, self.fallback, self.keep = model, packages, packages, fallback, keep
        self.stages, self.name = model.family.stages, describe_packages(runtime, packages, model)
        self._tables: dict[str, dict[str, np.ndarray]] = {}
        self._verified: set[str] = set()

    @abstractmethod
    def _call(self, declared: Stage, stage: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
        """Return a function that makes this network call (stage) on the network's package."""

    def _move_on(self, network: str, error: UserError) -> None:
        """Choose a replacement for a function or network whose package failed. If there is none, raise ``error``."""
        raise error

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        declared = self.stages.calls[stage]
        check_inputs(stage, declared, inputs)
        while declared.network in self.packages:
            try:
                return self._call(declared, stage)(inputs)
            except UserError as error:
                self._move_on(declared.network, error)
        return self.fallback.run(stage, **inputs)

    def _unload(self, network: str) -> None:
        self._tables.pop(network, None)

    def table(self, network: str, key: str) -> np.ndarray:
        """Read the parameter with this key from the network's state dict, as float32."""
        tables = self._tables.setdefault(network, {})
        if key not in tables:
            tables[key] = self.model.tensors(network)[key].float().numpy()
        return tables[key]

    def verified_package(self, network: str) -> PackageRecord:
        """Return a network's package. The first call checks its files, and raises UserError if a file is damaged."""
        package = self.packages[network]
        if package.path not in self._verified:
            check_hashes(self.folder, package.files)
            self._verified.add(package.path)
        return package


class PackagedBackend(PackagedEngine):
    """Runs networks on the fixed-shape functions in Core ML packages.

    Args:
        model: Bundle whose networks the backend runs.
        runtime: Runtime that loads the functions: Core ML, Core AI or the interpreter.
        fallback: Backend that runs the networks without a package.
        precision: Precision of the packages to use. "auto" means each network's first package in the bundle.
        cache: Memory for the kv-cache: "io" (on the host) or "state" (inside Core ML). "auto" means the kind for which
            the bundle has functions. If it has functions for both kinds, ``prefer_state`` decides.
        compute_units: Compute units of Core ML for all networks. ``None`` means the units that the bundle names.
        only: Names of the functions to use. ``None`` means all functions.
        keep: Whether functions stay loaded after ``release``.
        auto_fallback: Whether the backend goes on if a function cannot run. It then moves the function to other compute
            units, replaces it by another function (see ``PlacementPolicy``), or lets ``fallback`` run the network. Such
            a change lasts as long as the backend. ``False`` means that the backend raises the error.
        prefer_state: Whether "auto" means the cache "state" if the package has golden cases (inputs with known
            outputs). When the runtime first loads a function, it runs the function's golden case. If functions with a
            state fail or are slower, the backend uses the cache "io" instead.
        unpublished: Packages to use instead of the bundle's packages.

    Raises:
        UserError: The bundle has no packages, or no package with this precision, or no functions for this cache.
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
        """Return the longest row that the functions of a stage (network call) take.

        If the stage's network has no package, there is no limit.
        """
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
        LOGGER.info("%s. %s instead.", error_without_advice(error), instead or f"Running {network} on torch")

    def units(self, network: str) -> PlacementPolicy:
        """Return the policy that decides on which compute units each function of a network runs."""
        if network not in self._units:
            self._units[network] = PlacementPolicy(self.packages[network], self.runtime, self._compute_units)
        return self._units[network]

    def _load(self, network: str) -> None:
        """Check the files of the network's package.

        Functions load later, because the text decides which functions are needed.
        """
        self.verified_package(network)

    def _unload(self, network: str) -> None:
        super()._unload(network)
        if self._functions.pop(network, None):
            self.runtime.unload(self.folder / self.packages[network].path)

    def functions(self, network: str, kind: str) -> list[PackageFunction]:
        """Return a network's functions of one kind, such as "prefill". The list is empty if the package has none."""
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
        usable = [
            steps
            for kind in kinds
            if (
                steps := [step for step in self.functions(network, kind) if kind == "step" or "capacity" in step.bucket]
            )
        ]
        if usable:
            proven = self.prefer_state and (self.folder / self.packages[network].path / GOLDEN_CASES).is_file()
            if proven and len(usable) > 1:
                self._refuse_slower_state(network, *usable, lanes)
            return usable[-1 if proven else 0]
        raise UserError(
            f"{self.model.name} has no decoder steps with the cache {self.cache}: convert it again with "
            f"the cache {self.cache}, or use cache=auto"
        )

    def _refuse_slower_state(
        self, network: str, steps: list[PackageFunction], states: list[PackageFunction], lanes: int
    ) -> None:
        """Refuse to keep the kv-cache in a Core ML state if this makes decoder steps slower.

        The runtime measured the time of a call when it first loaded each function. The method compares a function that
        reads a state with a function that reads the host's cache. Both have as many columns as ``lanes`` needs, and the
        median number of slots.

        Raises:
            EngineRefusalError: A decoder step is faster with the kv-cache on the host than with the kv-cache in a
                state.
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
                f"A decoder step takes {1000 * in_state:.2f} ms with the kv-cache in a Core ML state "
                f"({state.name} and its share of a store, on {state.compute_units}) and {1000 * on_host:.2f} ms "
                "with the kv-cache on the host",
                function=state.name,
            )
