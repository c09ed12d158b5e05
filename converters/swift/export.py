"""Write a Swift package that speaks, with Core ML packages, the model's facts, a runtime in Swift, and tests."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ane.backends.base import MASKED
from ane.backends.packaged.selection import select_packages
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import check_hashes
from ane.bundles.package_records import PackageRecord
from ane.models.tortoise.chunks import max_text_tokens
from ane.models.tortoise.settings import TortoiseSettings
from ane.system.errors import UserError
from ane.system.files import check_output_folder, link_or_copy, replacing
from ane.text.english import CLEANUP_RULES, SIGN_RULES
from ane.text.tokenizer import SPACE, STOP, UNKNOWN
from ane.voices import Voice
from converters.swift.golden import DECODER, VOCODER, golden_vectors

TEMPLATE = Path(__file__).parent / "template"
MODEL = Path("Sources", "TortoiseCoreML", "Model")
GOLDEN = Path("Tests", "TortoiseTests", "Golden")
TABLES, CONTENT = MODEL / "tortoise.json", "a Swift package"  # a folder is replaced only if it contains TABLES


def check_bundle(bundle: Any, precision: str = "auto") -> dict[str, PackageRecord]:
    """Choose the Core ML packages to export, and return them by network.

    Raises:
        UserError: The model is not a Tortoise model, or lacks a package or function that the Swift runtime calls.
    """
    if bundle.family.name != "tortoise":
        raise UserError(f"{bundle.name} is a {bundle.family.title} model, but a Swift package needs a Tortoise model")
    packages = select_packages(bundle, precision)
    for network, kind in ((DECODER, "prefill"), (DECODER, "step"), (VOCODER, "hifigan")):
        kinds = {function.kind for function in packages[network].functions.values()} if network in packages else ()
        if kind not in kinds:
            missing = (
                f"decoder steps with the cache io in {bundle.name}"
                if kind == "step" and network in packages
                else f"Core ML functions of {network} in {bundle.name}"
            )
            raise UserError(
                f"there are no {missing}, which the Swift package calls: convert the model with `ane "
                "convert NAME --to coreml --networks autoregressive,hifigan --cache io,state -o DIR`"
            )
    return {network: packages[network] for network in (DECODER, VOCODER)}


def export_swift(
    bundle: Bundle,
    destination: Path,
    voices: Mapping[str, Voice],
    precision: str = "auto",
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda activity: None,
) -> Path:
    """Write the Swift package. The package appears at ``destination`` when it is complete.

    Args:
        bundle: The bundle to export.
        destination: Folder of the new package.
        voices: Voices with which the package can speak, by name. The first voice is the default.
        precision: Precision of the Core ML packages.
        overwrite: Whether to replace an existing Swift package.
        progress: Function that is called with the current activity.

    Raises:
        UserError: The model cannot be exported, a voice belongs to another model, the destination exists, or it cannot
            be written.
    """
    check_output_folder(destination, TABLES, CONTENT, overwrite)
    packages = check_bundle(bundle, precision)
    settings = TortoiseSettings.of("fastest", bundle.settings)
    tables = model_tables(bundle, packages, settings)
    for voice in voices.values():
        voice.check_widths(bundle.widths)
    default = next(iter(voices))
    with replacing(destination, directory=True) as folder:
        progress("copying packages")
        shutil.copytree(TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        (folder / MODEL).mkdir()
        tables |= {
            "packages": {
                network: copy_package(bundle, package, folder / MODEL) for network, package in packages.items()
            },
            "voices": list(voices),
            "defaultVoice": default,
            "arrays": write_arrays(folder / MODEL / "tables.f32", model_arrays(bundle, voices)),
        }
        write_content(folder / TABLES, tables)
        progress("recording golden vectors")
        golden, arrays = golden_vectors(bundle, precision, default, voices[default], settings)
        (folder / GOLDEN).mkdir()
        golden["arrays"] = write_arrays(folder / GOLDEN / "golden.f32", arrays)
        write_content(folder / GOLDEN / "golden.json", golden)
    return destination


def model_arrays(bundle: Bundle, voices: Mapping[str, Voice]) -> dict[str, np.ndarray]:
    """Return the decoder's embedding tables, and each voice's latent for the decoder, (1, D), in float32."""
    weights = bundle.tensors(DECODER)
    tables = {name: weights[key].float().numpy() for name, key in bundle.family.stages.decoder.tables.items()}
    return tables | {f"voice/{name}": voice.ar for name, voice in voices.items()}


def copy_package(bundle: Bundle, package: PackageRecord, folder: Path) -> dict[str, str]:
    """Check the hashes of a Core ML package, copy it, and return its description for ``TABLES``."""
    check_hashes(bundle.path, package.files)
    for file in package.files:
        target = folder / file.file
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(bundle.path / file.file, target)
    digests = "".join(file.sha256 for file in package.files)
    return {
        "path": package.path,
        "computeUnits": package.compute_units,
        "identity": hashlib.sha256(digests.encode()).hexdigest()[:16],
    }


def write_content(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Write arrays one after another as little-endian float32. Return each array's shape and offset (in floats)."""
    index, offset = {}, 0
    with path.open("wb") as file:
        for name, array in arrays.items():
            index[name] = {"shape": list(array.shape), "offset": offset}
            file.write(np.ascontiguousarray(array, "<f4").tobytes())
            offset += array.size
    return index


# The functions below make TABLES, which tells the Swift runtime about the text, decoder, sampling and vocoder


def model_tables(bundle: Bundle, packages: Mapping[str, PackageRecord], settings: TortoiseSettings) -> dict[str, Any]:
    """Return the facts about the model that the Swift runtime reads, except voices, arrays and paths.

    Raises:
        UserError: The Swift runtime does not support the model's settings or its tokenizer.
    """
    sampling = settings.sampling
    if sampling.typical_mass is not None:
        raise UserError("the model's settings have typical_mass, but the Swift package has no typical sampling")
    return {
        "name": bundle.name,
        "text": {
            "rules": text_rules(),
            **token_tables(bundle.tokenizer),
            "split": settings.split and list(settings.split),
            "maxTokens": max_text_tokens(bundle.config(DECODER)),
        },
        "decoder": decoder_tables(bundle, packages[DECODER]),
        "sampling": {
            "temperature": sampling.temperature,
            "repetitionPenalty": sampling.repetition_penalty,
            "topK": sampling.top_k,
            "topP": sampling.top_p,
            "maxCodes": sampling.max_codes,
        },
        "vocoder": vocoder_tables(bundle, packages[VOCODER]),
        "silence": settings.silence and list(settings.silence),
    }


def text_rules() -> list[dict[str, str]]:
    """Convert the normaliser's regular expressions for signs and punctuation to the syntax of NSRegularExpression.

    The result does not contain rules whose replacement is a Python function.
    """
    return [
        {
            "pattern": rule.pattern.pattern,
            "replacement": re.sub(r"\\(?:g<(\d)>|(\d))", lambda match: f"${match[1] or match[2]}", rule.replacement),
        }
        for rule in (*SIGN_RULES, *CLEANUP_RULES)
        if isinstance(rule.replacement, str)
    ]


def token_tables(tokenizer: str) -> dict[str, Any]:
    """Return the tokenizer's vocabulary, merges and special tokens.

    Raises:
        UserError: The tokenizer is of a kind that Tortoise models do not use.
    """
    content = json.loads(tokenizer)
    model, normalizer = content["model"], content.get("normalizer")
    splitter = (content.get("pre_tokenizer") or {}).get("type")
    kind = model.get("type"), splitter, normalizer is None
    if kind not in (("BPE", "Whitespace", True), ("WordLevel", "Split", False)):
        raise UserError(
            "tokenizer.json is neither byte-pair encoding of words nor one token per character: the Swift "
            "package supports only these two"
        )
    vocabulary = model["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges", ())]
    return {
        "vocabulary": vocabulary,
        "merges": merges,
        "space": vocabulary.get(SPACE),
        "special": [vocabulary[token] for token in (SPACE, STOP, UNKNOWN) if token in vocabulary],
        "unknown": vocabulary.get(UNKNOWN) if normalizer is None else None,
    }


def decoder_tables(bundle: Bundle, package: PackageRecord) -> dict[str, Any]:
    """Return the decoder's facts, and its functions for one lane (a single sequence).

    These are the functions with the fewest columns. The Python runtime chooses the same functions for one sequence.
    """
    config = bundle.config(DECODER)
    shape = config.decoder_shape
    steps = {name: function.bucket for name, function in package.functions.items() if function.kind == "step"}
    columns = min(bucket["columns"] for bucket in steps.values())
    return {
        "geometry": [shape.layers, shape.heads, shape.head_width],
        "scale": package.scale,
        "masked": MASKED,
        "prefills": _buckets(
            {
                name: function.bucket["columns"]
                for name, function in package.functions.items()
                if function.kind == "prefill"
            }
        ),
        "steps": _buckets({name: bucket["slots"] for name, bucket in steps.items() if bucket["columns"] == columns}),
        "stepColumns": columns,
        "startText": config.start_text_token,
        "stopText": config.stop_text_token,
        "startCode": config.start_mel_token,
        "stopCode": config.stop_mel_token,
    }


def vocoder_tables(bundle: Bundle, package: PackageRecord) -> dict[str, Any]:
    functions = {name: function.bucket for name, function in package.functions.items() if function.kind == VOCODER}
    return {
        "functions": _buckets({name: bucket["frames"] for name, bucket in functions.items()}),
        "margin": next(iter(functions.values()))["margin"],
        "conditioned": bool(bundle.config(VOCODER).cond_channels),
    }


def _buckets(lengths: Mapping[str, int]) -> list[dict[str, Any]]:
    """List a package's functions with the lengths for which they were built, the shortest first."""
    return [{"name": name, "length": length} for name, length in sorted(lengths.items(), key=lambda item: item[1])]
