"""Find the files of a voice, which a name or a path identifies."""

import difflib
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from ane.audio.reader import CLIP_SUFFIXES
from ane.bundles import Bundle
from ane.system import paths
from ane.system.errors import NotFoundError, UserError
from ane.system.files import no_such_file
from ane.voices.voice import LATENT_SUFFIXES, parse_mix

RANDOM = "random"  # name that asks for a voice drawn at random
MOST_BYTES = 200  # maximum bytes of a voice's name (file systems allow 255 with the suffix)
_MAX = 12  # maximum number of names in an error message


@dataclass(frozen=True)
class FoundVoice:
    """The name and the files of a voice. The files are clips in the order of their names, or one file of latents."""

    name: str
    files: tuple[Path, ...]


def find_voice(name_or_path: str, folders: Iterable[Path]) -> FoundVoice:
    """Find a voice by its name in folders of voices, or by its path.

    A path leads to a folder of clips, a sound file, or a voice in a .safetensors or .pth file. Text with a path
    separator or with the suffix of a voice file is a path. Other text is looked up as a name first, then as a path. If
    several folders have a voice of this name, the first folder counts.

    Raises:
        UserError: No voice has this name (the message lists similar names), the folder contains no voice, or the path
            is neither a file nor a folder (for example, it is a named pipe).
    """
    folders = list(folders)
    if not name_or_path.strip():
        raise UserError("the name of the voice is empty: `ane voices list` shows the names")
    path = Path(os.path.expanduser(name_or_path))
    is_path = is_voice_path(name_or_path)
    if not is_path:
        voice = list_voices(folders).get(name_or_path)
        if voice:
            return voice
    if os.path.isdir(path):
        return FoundVoice(_folder_name(path), _files_in(path))
    if os.path.isfile(path):
        return FoundVoice(path.stem, (path,))
    if os.path.exists(path):
        raise UserError(f"{path}: is not a regular file: name a sound file or a voice file")
    raise NotFoundError(f"{path}: {no_such_file(path)}" if is_path else _not_found(name_or_path, folders))


def list_voices(folders: Iterable[Path]) -> dict[str, FoundVoice]:
    """List the voices in folders by name, sorted. A voice hides voices of the same name in later folders.

    If a folder has several voices called NAME, the function lists the first of these: NAME.safetensors, the folder
    NAME, NAME.pth, a sound file. The function skips missing folders, and files and folders that are not voices.
    """
    voices: dict[str, FoundVoice] = {}
    for folder in folders:
        entries = sorted(_visible(folder), key=lambda entry: (_rank(entry), entry.name))
        for entry in entries:
            files = _files_of(entry)
            name = entry.name if os.path.isdir(entry) else entry.stem
            if files and name not in voices:
                voices[name] = FoundVoice(name, files)
    return dict(sorted(voices.items()))


def stored_voice(name: str) -> Path:
    """Return the path at which a voice with this name is stored, in the user's folder of voices."""
    return paths.voices_dir() / f"{name}.safetensors"


def consent_file(voice: Path) -> Path:
    """Return the path of the file next to a stored voice in which its speaker agrees to the voice."""
    return voice.with_suffix(".consent.txt")


def stored_files(name: str) -> list[Path]:
    """Return the files of a voice that the user stored: its latents, and the consent of its speaker if there is one.

    Raises:
        NotFoundError: No voice with this name is stored.
        UserError: The voice is a folder of clips, which may be the only copy.
    """
    folder = paths.voices_dir()
    stored = list_voices([folder])
    if name not in stored:
        known = f"choose from {', '.join(stored)}" if stored else "there are no stored voices"
        raise NotFoundError(f"no voice {name!r} is stored in {folder}: {known}")
    [file, *_] = stored[name].files
    if file.parent != folder:
        raise UserError(f"{name} is a folder of clips, which may be the only copy: delete {file.parent} yourself")
    return [file, *filter(os.path.exists, [consent_file(file)])]


def voice_names(model: Bundle) -> list[str]:
    """Return the names of the voices that a request may use with a model.

    If the model has one nameless voice, return no names.
    """
    if model.voice_names or not model.has_latents:
        return model.voice_names
    return [*list_voices(folder for folder in (model.voices, paths.voices_dir()) if folder is not None), RANDOM]


def check_voice_name(name: str) -> None:
    """Raise UserError if a voice with this name could not be stored, or could not be found again by name."""
    if name in (RANDOM, "?") or name.startswith((".", "-", "~")) or any(sign in name for sign in "/\\&:"):
        raise UserError(
            f"{name!r} cannot name a voice: choose a name without / \\ & : and without . - ~ in front, "
            f"different from {RANDOM} and ?"
        )
    if not name or name != name.strip() or not name.isprintable() or is_voice_file(Path(name)):
        raise UserError(
            f"{name!r} cannot name a voice: choose printable characters, without spaces at the ends and "
            "without the suffix of a file"
        )
    if len(name.encode()) > MOST_BYTES:
        raise UserError(
            f"{name!r} cannot name a voice, because its {len(name.encode())} bytes in UTF-8 are more than "
            f"{MOST_BYTES}: choose a shorter name"
        )


def check_named_voice(spec: str, names: Collection[str]) -> None:
    """Raise UserError unless ``spec``, which comes from a text, is one of ``names`` or a mix of names.

    A text may come from a stranger, so it must not name a file.
    """
    unknown = [name for name in parse_mix(spec)[0] if name not in names or is_voice_path(name)]
    if unknown:
        known = f"the names are {', '.join(list(names)[:_MAX])}" if names else "there are no voices"
        raise NotFoundError(
            f"no voice is named {unknown[0]!r}, and a text cannot name a file: {known} "
            "(a cast can assign files to the names in a text)"
        )


def is_voice_path(name_or_path: str) -> bool:
    """Return whether text is the path of a voice: it has a separator, a home folder or the suffix of a voice file."""
    path = Path(os.path.expanduser(name_or_path))
    return path.name != name_or_path or is_voice_file(path)


def _files_of(entry: Path) -> tuple[Path, ...]:
    """Return the files of the voice at a path in a folder of voices, or () if the path is not a voice."""
    if os.path.isdir(entry):
        try:
            return _files_in(entry)
        except UserError:
            return ()
    return (entry,) if is_voice_file(entry) and os.path.isfile(entry) else ()


def _files_in(folder: Path) -> tuple[Path, ...]:
    """Return the clips in a folder, sorted by name. If the folder has no clips, return its only file of latents.

    Upstream's ``load_voice`` has the same rule (utils/audio.py). A .pth file next to clips is ignored, because
    upstream's git master leaves a copy of the clips in such a file.
    """
    entries = sorted(entry for entry in _visible(folder) if os.path.isfile(entry))
    clips = tuple(entry for entry in entries if entry.suffix.lower() in CLIP_SUFFIXES)
    if clips:
        return clips
    latents = [entry for entry in entries if entry.suffix in LATENT_SUFFIXES]
    if len(latents) == 1:
        return (latents[0],)
    if latents:
        raise UserError(
            f"{folder}: has {len(latents)} files of latents ({', '.join(e.name for e in latents[:_MAX])})"
            ": name one of them"
        )
    raise UserError(
        f"{folder}: has neither clips ({', '.join(CLIP_SUFFIXES)}) nor latents ({', '.join(LATENT_SUFFIXES)}): "
        "name another folder"
    )


def _folder_name(folder: Path) -> str:
    try:
        return folder.resolve().name
    except OSError:  # the working directory was deleted
        return folder.name


def is_voice_file(path: Path) -> bool:
    return path.suffix in LATENT_SUFFIXES or path.suffix.lower() in CLIP_SUFFIXES


def _visible(folder: Path) -> list[Path]:
    """Return the files in a folder, except for hidden files such as macOS's ._clip.wav next to clip.wav."""
    try:
        return [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []


def _rank(entry: Path) -> int:
    """Return the rank of a file or folder.

    If several have the same voice name, the file or folder with the lowest rank hides the rest.
    """
    if entry.suffix == ".safetensors":
        return 0
    if os.path.isdir(entry):
        return 1
    return 2 if entry.suffix == ".pth" else 3


def _not_found(name: str, folders: list[Path]) -> str:
    names = list(list_voices(folders))
    where = " or ".join(str(folder) for folder in folders) or "any folder"
    if not names:
        return f"no voice {name!r}, because {where} has no voices: add one with `ane voices add clip.wav -o {name}`"
    similar = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(similar)}? " if similar else ""
    known = f"the voices are {', '.join(names)}" if len(names) <= _MAX else f"`ane voices list` shows all {len(names)}"
    return f"no voice {name!r} in {where}: {hint}{known}, and {RANDOM}"
