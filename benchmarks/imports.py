"""Import checkpoints into bundles for benchmarks, because upstream reads checkpoints, but this package only bundles."""

import sys
from pathlib import Path

from ane.bundles import Bundle
from ane.bundles.family import import_options
from ane.bundles.hashes import size_and_time
from ane.bundles.opening import family_of_checkpoints
from ane.bundles.writing import write_bundle
from ane.system.errors import UserError


def imported(checkpoints: Path) -> Bundle:
    """Import a folder of checkpoints as ``NAME.bundle`` next to the folder, and open the bundle.

    If the bundle exists and the checkpoints have not changed, it is not imported again. The bundle stays on the disk.
    It is about as large as the checkpoints, 4.1 GB at Tortoise's official sizes. A line on standard error says so.

    Raises:
        UserError: There are no checkpoints, the checkpoints are damaged, or the bundle cannot be written.
    """
    destination = checkpoints.with_name(f"{checkpoints.name}.bundle")
    family = family_of_checkpoints(checkpoints)
    state = {name: list(size_and_time(file)) for name, file in family.source_files(checkpoints).items()}
    try:
        bundle = Bundle(destination)
        if bundle.manifest.source.get("state") == state:
            return bundle
    except UserError:
        pass
    contents = family.import_checkpoints(checkpoints, **import_options(family))
    size = sum(size for size, _ in state.values())
    print(
        f"importing {checkpoints} into {destination}: about {size / 1e9:.1f} GB more, until you remove it",
        file=sys.stderr,
    )
    return write_bundle(
        contents, destination, name=checkpoints.name, overwrite=True, source={**contents.source, "state": state}
    )
