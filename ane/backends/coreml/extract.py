"""One function of a package as a package of its own, for what supports such packages only.

That is Core ML's compute plan, which takes no name of a function and plans the default one, and systems whose Core ML
refuses packages of several functions.
"""

import shutil
from pathlib import Path

from ane.backends.coreml.compiled import package_hash
from ane.backends.mil.package import model_messages
from ane.system import paths
from ane.system.files import link_or_copy, replacing

MODEL = Path("Data") / "com.apple.CoreML" / "model.mlmodel"         # in a package


def single_function(package: Path, function: str) -> Path:
    """The function as a package in the user's cache. Raises UserError when the cache cannot be written."""
    path = paths.cache_dir() / "functions" / f"{package_hash(package)[:32]}-{function}.mlpackage"
    if not path.is_dir():
        with replacing(path, directory=True) as folder:
            folder.rmdir()
            extract_function(package, function, folder)
    return path


def extract_function(package: Path, function: str, destination: Path) -> None:
    """Write one function of a package as a separate package, in which it is called "main"; weights are linked."""
    shutil.copytree(package, destination, copy_function=link_or_copy)
    spec = model_messages().Model()
    spec.ParseFromString((package / MODEL).read_bytes())
    functions, description = spec.mlProgram.functions, spec.description
    for name in list(functions):
        if name == function != "main":
            functions["main"].CopyFrom(functions[name])
        if name != "main" or name != function:
            functions.pop(name)
    for interface in description.functions:
        if interface.name == function:
            description.input.extend(interface.input)
            description.output.extend(interface.output)
            description.state.extend(interface.state)
    description.ClearField("functions")
    description.ClearField("defaultFunctionName")
    (destination / MODEL).unlink()      # it may be a hard link to the original
    (destination / MODEL).write_bytes(spec.SerializeToString())
