"""Core ML packages of the embedded bundle: made on the machine that first asks for them, and kept."""

from rich.console import Console

from ane import places
from ane.backends import PACKAGED, core_ml_runs, resolve
from ane.model import Model, demo_bundle
from ane.version import version


def with_packages(model: Model, backend: str, console: Console) -> Model:
    """The model itself; or, for the embedded bundle on an engine of packages, its copy that has them.

    The copy is converted when it is first asked for, which takes a minute or two, and kept in the cache under the
    model's identity. Every other model is converted by `ane convert`.

    Raises:
        UserError: no room for it, no backend of that name, Core ML off macOS.
    """
    embedded = getattr(model, "path", None) == demo_bundle()
    wanted = resolve(backend, model)[0] in PACKAGED or (backend == "auto" and core_ml_runs())
    if not embedded or not wanted:
        return model
    if backend == "coreml":
        from ane.backends.coreml import CoreMLTools

        CoreMLTools()       # refuses off macOS, before minutes of converting
    from ane.model.bundle import Bundle
    from converters.conversion import convert
    from converters.to_coreml import Options

    kept = places.cache_dir() / "packages" / f"{model.identity[:16]}-{version()}"
    if (kept / "bundle.json").is_file():
        return Bundle(kept)
    with console.status("making the Core ML packages of the embedded voice, once") as status:
        return convert(model, kept, [Options(lanes=(1, 8, 16))], progress=lambda network, doing: status.update(
            f"making the Core ML packages of the embedded voice, once: {network}, {doing}"))
