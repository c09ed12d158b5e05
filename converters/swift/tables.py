"""What the Swift package knows of a model: its text, its decoder, its vocoder, and how codes are sampled."""

import json
import re
from collections.abc import Mapping
from typing import Any

from ane.backends.base import MASKED
from ane.bundles.bundle import Bundle
from ane.bundles.packages import PackageRecord
from ane.models.tortoise.chunks import max_text_tokens
from ane.models.tortoise.settings import Settings
from ane.system.errors import UserError
from ane.text.english import CLEANUP_RULES, SIGN_RULES
from ane.text.tokenizer import SPACE, STOP, UNKNOWN

DECODER, VOCODER = "autoregressive", "hifigan"
NETWORKS = (DECODER, VOCODER)


def check_exportable(bundle: Bundle, packages: Mapping[str, PackageRecord]) -> None:
    """Raise UserError for a bundle without the packages and functions that the Swift runtime calls."""
    for network, kind in ((DECODER, "prefill"), (DECODER, "step"), (VOCODER, "hifigan")):
        kinds = {function.kind for function in packages[network].functions.values()} if network in packages else ()
        if kind not in kinds:
            missing = f"decoder steps with the cache io in {bundle.name}" if kind == "step" and network in packages \
                else f"Core ML functions of {network} in {bundle.name}"
            raise UserError(f"there are no {missing}, which the Swift package calls: convert the model with `ane "
                            "convert NAME --to coreml --networks autoregressive,hifigan --cache io,state -o DIR`")


def model_tables(bundle: Bundle, packages: Mapping[str, PackageRecord], settings: Settings) -> dict[str, Any]:
    """The tables without voices, arrays and paths. Raises UserError for unsupported settings or tokenizers."""
    sampling = settings.sampling
    if sampling.typical_mass is not None:
        raise UserError("the model's settings have typical_mass, and the Swift package has no typical sampling")
    return {
        "name": bundle.name,
        "text": {"rules": text_rules(), **token_tables(bundle.tokenizer),
                 "split": settings.split and list(settings.split),
                 "maxTokens": max_text_tokens(bundle.config(DECODER))},
        "decoder": decoder_tables(bundle, packages[DECODER]),
        "sampling": {"temperature": sampling.temperature, "repetitionPenalty": sampling.repetition_penalty,
                     "topK": sampling.top_k, "topP": sampling.top_p, "maxCodes": sampling.max_codes},
        "vocoder": vocoder_tables(bundle, packages[VOCODER]),
        "silence": settings.silence and list(settings.silence),
    }


def text_rules() -> list[dict[str, str]]:
    """The normaliser's rules for signs and punctuation that are plain substitutions, in the syntax of
    NSRegularExpression."""
    return [{"pattern": rule.pattern.pattern,
             "replacement": re.sub(r"\\(?:g<(\d)>|(\d))", lambda found: f"${found[1] or found[2]}", rule.replacement)}
            for rule in (*SIGN_RULES, *CLEANUP_RULES) if isinstance(rule.replacement, str)]


def token_tables(tokenizer: str) -> dict[str, Any]:
    """Vocabulary and merges. Raises UserError for a tokenizer of another kind than those of Tortoise's models."""
    content = json.loads(tokenizer)
    model, normalizer = content["model"], content.get("normalizer")
    splitter = (content.get("pre_tokenizer") or {}).get("type")
    kind = model.get("type"), splitter, normalizer is None
    if kind not in (("BPE", "Whitespace", True), ("WordLevel", "Split", False)):
        raise UserError("tokenizer.json is neither byte-pair encoding of words nor one token a character: the Swift "
                        "package supports these two")
    vocabulary = model["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges", ())]
    return {"vocabulary": vocabulary, "merges": merges, "space": vocabulary.get(SPACE),
            "special": [vocabulary[token] for token in (SPACE, STOP, UNKNOWN) if token in vocabulary],
            "unknown": vocabulary.get(UNKNOWN) if normalizer is None else None}


def decoder_tables(bundle: Bundle, package: PackageRecord) -> dict[str, Any]:
    """Functions for one lane: those with the fewest columns, as the Python runtime chooses."""
    config = bundle.config(DECODER)
    shape = config.decoder_shape
    steps = {name: function.bucket for name, function in package.functions.items() if function.kind == "step"}
    columns = min(bucket["columns"] for bucket in steps.values())
    return {
        "geometry": [shape.layers, shape.heads, shape.head_width], "scale": package.scale, "masked": MASKED,
        "prefills": _buckets({name: function.bucket["columns"] for name, function in package.functions.items()
                              if function.kind == "prefill"}),
        "steps": _buckets({name: bucket["slots"] for name, bucket in steps.items() if bucket["columns"] == columns}),
        "stepColumns": columns,
        "startText": config.start_text_token, "stopText": config.stop_text_token,
        "startCode": config.start_mel_token, "stopCode": config.stop_mel_token,
    }


def vocoder_tables(bundle: Bundle, package: PackageRecord) -> dict[str, Any]:
    functions = {name: function.bucket for name, function in package.functions.items() if function.kind == VOCODER}
    return {"functions": _buckets({name: bucket["frames"] for name, bucket in functions.items()}),
            "margin": next(iter(functions.values()))["margin"],
            "conditioned": bool(bundle.config(VOCODER).cond_channels)}


def _buckets(lengths: Mapping[str, int]) -> list[dict[str, Any]]:
    """Functions by length, the smallest first."""
    return [{"name": name, "length": length} for name, length in sorted(lengths.items(), key=lambda item: item[1])]
