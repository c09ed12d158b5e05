"""Define the work that the campaign ``kill`` interrupts, and how the campaign checks it.

Each ``Disturbed`` prepares a folder, does its work there, and reads what every interrupted and repeated run must give.
"""

import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ane.audio import writing
from ane.audio.reader import read_recording
from ane.books.job_database import FILE
from ane.books.output import OutputOptions, write_book_files
from ane.books.retries import BookChecker, check_book
from ane.books.store import JobStore
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import record
from ane.bundles.package_records import FunctionRecord, PackageRecord
from ane.bundles.writing import write_bundle
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.voices.voice import Voice, load_voice, save_voice
from converters.conversion import convert
from tests.books.stand_in import StandInSpeaker, book, plan_for, run_job, sounds

BOOK = book(10)


def whole_run(folder: Path, speaker: StandInSpeaker | None = None, title: str = "") -> int:
    """Speak the missing chunks and write the files. Return how many chunks were spoken."""
    spoken = run_job(folder / "book.wav.job", BOOK, speaker)
    with closing(JobStore(folder / "book.wav.job")) as job:
        speaker = StandInSpeaker()
        check_book(job, plan_for(speaker, BOOK, job.seed(7)), speaker, BookChecker(retries=1))
        write_book_files(job, OutputOptions(folder / "book.wav", srt=True, title=title))
    return spoken


def narration_state(folder: Path) -> dict[str, object]:
    """Return the results that no interruption may change: the samples of chunks and file, and the names of files."""
    job = folder / "book.wav.job"
    names = [name for name in names_in(folder) if f"/{FILE}-" not in name]
    return {
        "sounds": sounds(job),
        "file": read_recording(folder / "book.wav")[0].tobytes(),
        "subtitles": (folder / "book.srt").read_text(encoding="utf-8"),
        "names": names,
    }


def names_in(folder: Path) -> list[str]:
    """Return the names of all files and folders, except for empty staging folders without a lock, which stay a day."""
    empty = {path for path in folder.rglob("*.partial") if {file.name for file in path.iterdir()} <= {".lock.new"}}
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not empty & {path, path.parent})


def finished(folder: Path) -> int:
    """Count the chunks with a sound."""
    if not (folder / "book.wav.job" / FILE).exists():
        return 0
    with closing(JobStore(folder / "book.wav.job")) as job:
        return sum(chunk.samples is not None for chunk in job.chunks())


@dataclass(frozen=True)
class Disturbed:
    """Work that the campaign interrupts and then runs again.

    Attributes:
        work: Function that does the work in a folder, or what remains to be done there.
        state: Function that returns the results which every interruption must leave equal.
        prepare: Function that puts the files in the folder that are there before the work.
        lost: Function that is called after an interruption. It returns a function that takes the result of the next
            ``work``, and says in words what was lost, or returns ``None``.
    """

    name: str
    work: Callable[[Path], object]
    state: Callable[[Path], dict[str, Any]]
    prepare: Callable[[Path], object] = lambda folder: None
    lost: Callable[[Path], Callable[[Any], str | None]] = lambda folder: lambda returned: None


def narrating() -> Disturbed:
    def lost(folder: Path) -> Callable[[Any], str | None]:
        """Check that every finished chunk is kept, and that only the other chunks are spoken again."""
        kept = finished(folder)

        def judge(spoken: int) -> str | None:
            chunks = len(sounds(folder / "book.wav.job"))
            return f"{kept} chunks were finished and {spoken} spoken again" if kept + spoken != chunks else None

        return judge

    return Disturbed("narration", whole_run, narration_state, lost=lost)


def rewriting() -> Disturbed:
    def lost(folder: Path) -> Callable[[Any], str | None]:
        """Check that a file which the user changes after the interruption is kept, and that the next run refuses it."""
        for name in ("book.wav", "book.srt"):
            content = (folder / name).read_bytes()
            changed = content + b"the user's"
            (folder / name).write_bytes(changed)
            try:
                whole_run(folder, title="After")
                return lambda spoken: f"the next run did not refuse {name}, which its user had changed"
            except UserError:
                if (folder / name).read_bytes() != changed:
                    return lambda spoken: f"{name} was lost, which its user had changed"
            (folder / name).write_bytes(content)
        return lambda spoken: None

    return Disturbed(
        "second writing",
        lambda folder: whole_run(folder, title="Second"),
        narration_state,
        lambda folder: whole_run(folder, title="First"),
        lost,
    )


def one_file(name: str, file: str, write: Callable[[Path, int], object], read: Callable[[Path], Any]) -> Disturbed:
    """Return work that replaces one private file of the user with another. ``read`` returns the content of the file."""

    def prepare(folder: Path) -> None:
        write(folder / file, 1)
        (folder / file).chmod(0o600)

    def state(folder: Path) -> dict[str, Any]:
        return {
            "content": read(folder / file),
            "names": names_in(folder),
            "mode": stat.S_IMODE((folder / file).stat().st_mode),
        }

    with tempfile.TemporaryDirectory() as place:
        whole = []
        for number in (1, 2):
            write(Path(place) / file, number)
            whole.append(read(Path(place) / file))

    def lost(folder: Path) -> Callable[[Any], str | None]:
        """Check that the old file or the new one is there, whole and with its file mode."""
        found = state(folder)
        wrong = found["content"] not in whole or found["mode"] != 0o600
        return lambda returned: "neither the former file nor the new one is there" if wrong else None

    return Disturbed(name, lambda folder: write(folder / file, 2), state, prepare, lost)


def speaking() -> Disturbed:
    """Return the work of `ane say -o` on an existing file. It writes the sound in several parts."""

    def write(path: Path, number: int) -> None:
        with writing(path, 24000) as append:
            for piece in range(5):
                append(np.full(4096, 0.1 * number + 0.01 * piece, np.float32))

    return one_file("say", "speech.wav", write, Path.read_bytes)


def adding_a_voice() -> Disturbed:
    """Return the work of `ane voices add --force` on an existing voice."""

    def write(path: Path, number: int) -> None:
        save_voice(path, Voice(np.full((1, 64), number, np.float32), np.full((1, 128), number, np.float32), "ann"))

    def read(path: Path) -> tuple[bytes, bytes]:
        voice = load_voice(path)
        return voice.ar.tobytes(), voice.diffusion.tobytes()

    return one_file("voice", "ann.safetensors", write, read)


class StandInTarget:
    """A converter that writes packages of a few bytes."""

    name, unmerged, networks = "onnx", 0, ("fastspeech",)

    def check(self, options: Sequence[Any], model: Any) -> None:
        pass

    def versions(self) -> tuple[str, ...]:
        return ()

    def package(
        self, model: Any, network: str, options: Any, work: Path, progress: Callable[[str], None], licence: str
    ) -> PackageRecord:
        path = f"packages/{network}-{options.precision}.onnx"
        with replacing(work / path, directory=True) as folder:
            (folder / "graph.onnx").write_text(options.precision * 100)
        return PackageRecord(
            network,
            options.precision,
            path,
            [record(work, f"{path}/graph.onnx")],
            {"speak": FunctionRecord("speak", {})},
            format=self.name,
        )


@dataclass(frozen=True)
class StandInOptions:
    precision: str

    def stored(self, network: str) -> str:
        return self.precision


def bundle_state(folder: Path) -> dict[str, Any]:
    Bundle(folder / "out").verify()
    return {"names": names_in(folder), "bundle": (folder / "out" / "bundle.json").read_text()}


def no_bundle_left(folder: Path) -> Callable[[Any], str | None]:
    """Check that an intact bundle is somewhere: the old one or the new one."""
    for path in [folder / "out", *(file.parent for file in folder.rglob("bundle.json"))]:
        try:
            Bundle(path).verify()
            return lambda returned: None
        except UserError:
            continue
    return lambda returned: "no intact bundle is left"


def importing(model: Any) -> Disturbed:
    return Disturbed(
        "import",
        lambda folder: write_bundle(model, folder / "out", overwrite=True),
        bundle_state,
        lambda folder: write_bundle(model, folder / "out", description="the one before"),
        no_bundle_left,
    )


def converting(model: Any) -> Disturbed:
    def work(folder: Path) -> None:
        convert(
            model,
            folder / "out",
            [StandInOptions(precision) for precision in ("fp32", "fp16")],
            overwrite=(folder / "out").exists(),
            target=StandInTarget(),
        )

    return Disturbed("conversion", work, bundle_state)
