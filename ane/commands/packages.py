"""Core ML packages of the embedded bundle: made on the machine that first asks for them, and kept."""

from pathlib import Path

from rich.console import Console

from ane.backends import PACKAGED, core_ml_runs, resolve
from ane.bundles import Model, demo_bundle
from ane.system import paths
from ane.system.errors import UserError


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
        from ane.backends.coreml.engine import CoreMLTools

        CoreMLTools()       # refuses off macOS, before minutes of converting
    from filelock import FileLock

    from converters.conversion import convert, code_fingerprint
    from converters.coreml.package import CoreMLOptions

    kept = paths.cache_dir() / "packages" / f"{model.identity[:16]}-{code_fingerprint()[:16]}"
    doing = "making the Core ML packages of the embedded voice, once"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{kept}.lock"):          # another process may be making them
        whole = opened(kept)
        if whole is not None:
            return whole
        if not console.is_terminal:
            console.print(f"{doing}: a minute or two")
        with console.status(doing) as status:
            return convert(model, kept, [CoreMLOptions(lanes=(1, 8, 16))], overwrite=True, progress=lambda network, what:
                           status.update(f"{doing}: {network}, {what}"))


def opened(kept: Path) -> Model | None:
    """The bundle there when it is whole; None when it is not there or damaged, so that it is made again."""
    from ane.bundles.bundle import Bundle
    from ane.bundles.hashes import check_hash

    try:
        bundle = Bundle(kept)
        for file in bundle.files:
            check_hash(kept, file)
    except UserError:
        return None
    return bundle
