#!/usr/bin/env bash
# Measure and test on one NVIDIA GPU, in 45 minutes and without a network. The most useful steps run first.
#
#   benchmarks/gpu.sh [--minutes N] [--only STEP,…] [--wheels DIR] [-o DIR]
#   benchmarks/gpu.sh --dry-run        list the steps with their commands and their status, and run nothing
#   benchmarks/gpu.sh --fetch DIR      with a network: download the wheels to DIR, and split them for transport
#   benchmarks/gpu.sh --split DIR      split the wheels in DIR into parts of at most 48 MB
#
# Each step writes STEP.json (its result), STEP.log, and STEP.step.json (its status, seconds and command) to the output
# folder (default: build/gpu). Run the same command again to continue: it skips steps that succeeded, and runs all others
# again. Models have random weights of the official sizes, so figures measure speed, and agreement between backends. DIR
# is relative to the repository. The variable PYTHON names the interpreter for all steps (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."

# packages that a machine with PyTorch for CUDA 13 usually lacks. onnxruntime-gpu must replace onnxruntime
WHEELS=(
    "onnxruntime-gpu>=1.27" "onnx>=1.18" "onnxscript>=0.5" "onnx-ir" "ml_dtypes"        # ONNX Runtime on CUDA
    "soundfile>=0.13" "soxr>=0.5" "anyascii>=0.3.2" "unicode-rbnf>=2.4" "miniaudio>=1.60"
    "pydantic>=2.10" "platformdirs>=4.14" "rich>=13.7" "tokenizers>=0.20" "safetensors>=0.5" "filelock>=3.12"
    "coremltools==9.0" "cattrs" "attrs" "pyaml" "numpy>=2.0,<2.4"       # the converters import coremltools
    "pytest>=8.4" "pytest-xdist>=3.6" "pytest-timeout>=2.3" "hypothesis>=6.100" "cffi" "pycparser"
)
PART=48M
python=$(printf %q "${PYTHON:-python3}")      # quoted, because a shell runs the commands of the steps
minutes=45 only="" wheels="" output=build/gpu dry_run=false

usage() {
    sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'
}

fail() {
    echo "error: $1" >&2
    exit 2
}

# Downloads wheels for Python 3.12 on x86-64 Linux to folder $1, without their dependencies, and splits the wheels.
fetch_wheels() {
    local platforms=() minor
    for minor in 28 27 24 17; do
        platforms+=(--platform "manylinux_2_${minor}_x86_64")
    done
    "${PYTHON:-python3}" -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any -d "$1" "${WHEELS[@]}"
    split_wheels "$1"
}

# Replaces each wheel in folder $1 by parts, which `join_wheels` joins and checks.
split_wheels() {
    local wheel
    (
        cd "$1"
        for wheel in *.whl; do
            [ -e "$wheel" ] || fail "there is no wheel in $1"
            sha256sum "$wheel" > "$wheel.sha256"
            split --bytes="$PART" --numeric-suffixes --suffix-length=3 "$wheel" "$wheel.part-"
            rm "$wheel"
        done
    )
}

# Joins the parts in folder $1 to wheels in folder $2. Fails if a wheel is damaged or incomplete.
join_wheels() {
    local sum wheel
    mkdir -p "$2"
    for sum in "$1"/*.sha256; do
        [ -e "$sum" ] || fail "there are no parts of wheels in $1"
        wheel=$(basename "$sum" .sha256)
        cat "$1/$wheel".part-* > "$2/$wheel"
        (cd "$2" && sha256sum --quiet --check -) < "$sum" || fail "$wheel is damaged or incomplete"
    done
}

# Installs the wheels for this run only. The packages that the machine has do not change.
install_wheels() {
    if [ ! -e "$output/site/.installed" ]; then
        rm -rf "$output/site"
        join_wheels "$wheels" "$output/joined"
        "${PYTHON:-python3}" -m pip install --quiet --no-index --no-deps --target "$output/site" "$output"/joined/*.whl
        rm -rf "$output/joined"
        touch "$output/site/.installed"
    fi
    PYTHONPATH="$(cd "$output/site" && pwd):$PYTHONPATH"
}

# Lists the steps in order of value: name, time limit in seconds, command. A result goes to $output/NAME.json.
add_steps() {
    local checkpoints="$output/checkpoints" bundle="$output/onnx" bench="$python -m benchmarks"
    local on_torch="--checkpoints $checkpoints --competitors torch:cuda --precision fp32,fp16,bf16"
    local converted="--networks autoregressive,diffusion,univnet,hifigan"
    local on_onnx="--bundle $bundle --competitors torch:cuda,onnx:cuda --precision fp32,fp16,int4"
    local on_tensorrt="--bundle $bundle --competitors onnx:cuda,onnx:tensorrt --precision fp16"
    step machine 120 "nvidia-smi; $python -m ane doctor --json > $output/machine.json"
    step tests 900 "$python -m pytest tests/cuda -rA -p no:cacheprovider --junitxml=$output/tests.xml"
    step checkpoints 300 "$bench checkpoints $checkpoints"
    step sentence-torch 420 "$bench sentence $on_torch -o $output/sentence-torch.json"
    step import 300 "$python -m ane import $checkpoints -o $output/imported --precision fp16"
    step convert 900 "$python -m ane convert $output/imported --to onnx --precision fp32,fp16,int4 $converted -o $bundle"
    step verify-onnx 420 "$python -m ane verify --against onnx:cuda --bundle $bundle --json $output/verify-onnx.json"
    step sentence-onnx 420 "$bench sentence $on_onnx -o $output/sentence-onnx.json"
    step stream-torch 420 "$bench stream $on_torch --seconds 5,20,60 -o $output/stream-torch.json"
    step engines-checkpoint 60 "$python -m tests.fastspeech_files $output/fastspeech.pt"
    step engines-import 120 "$python -m ane import $output/fastspeech.pt -o $output/fastspeech"
    step engines-convert 300 "$python -m ane convert $output/fastspeech --to onnx -o $output/fastspeech-onnx"
    step engines 900 "$bench engines --bundle $output/fastspeech-onnx -o $output/engines.json"
    step sentence-tensorrt 600 "$bench sentence $on_tensorrt -o $output/sentence-tensorrt.json"
}

# Runs or lists the step $1, whose command $3 gets at most $2 seconds.
step() {
    local name=$1 limit=$2 command=$3 left started status=0
    case ",${only:-$name}," in *",$name,"*) ;; *) return 0 ;; esac
    if grep -qs '"exit_status": 0' "$output/$name.step.json"; then
        echo "done     $name"
        return 0
    fi
    if $dry_run; then
        printf 'to run   %s, at most %d s\n         %s\n' "$name" "$limit" "$command"
        return 0
    fi
    left=$((minutes * 60 - SECONDS))
    if [ "$left" -lt 30 ]; then
        echo "no time  $name"
        return 0
    fi
    echo "running  $name"
    started=$SECONDS
    timeout --kill-after=20 "$((limit < left ? limit : left))" bash -c "$command" > "$output/$name.log" 2>&1 || status=$?
    record "$name" "$status" "$((SECONDS - started))" "$command"
    if [ "$status" -eq 0 ]; then
        echo "ok       $name, $((SECONDS - started)) s"
    else
        echo "failed   $name, exit status $status: $(tail -n 1 "$output/$name.log")"
    fi
}

# Writes the status of a step as JSON, and the outcome of each test to tests.json.
record() {
    "${PYTHON:-python3}" - "$output" "$@" << 'END'
import json, pathlib, sys
import xml.etree.ElementTree as xml

folder, name, status, seconds, command = pathlib.Path(sys.argv[1]), *sys.argv[2:]
outcome = {"step": name, "exit_status": int(status), "timed_out": int(status) in (124, 137), "seconds": int(seconds),
           "command": command}
(folder / f"{name}.step.json").write_text(json.dumps(outcome, indent=1) + "\n")
report = folder / f"{name}.xml"
if report.is_file():
    cases = []
    for case in xml.parse(report).iter("testcase"):
        found = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        cases.append({"test": case.get("name"), "file": case.get("classname"), "seconds": float(case.get("time", 0)),
                      "outcome": "passed" if found is None else found.tag,
                      "message": "" if found is None else found.get("message", "")})
    (folder / f"{name}.json").write_text(json.dumps(cases, indent=1) + "\n")
END
}

while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) dry_run=true ;;
        --minutes) minutes=${2:?--minutes needs a number}; shift ;;
        --only) only=${2:?--only needs names of steps}; shift ;;
        --wheels) wheels=${2:?--wheels needs a folder}; shift ;;
        -o) output=${2:?-o needs a folder}; shift ;;
        --fetch) fetch_wheels "${2:?--fetch needs a folder}"; exit ;;
        --split) split_wheels "${2:?--split needs a folder}"; exit ;;
        -h | --help) usage; exit ;;
        *) usage >&2; fail "unknown option $1" ;;
    esac
    shift
done

if $dry_run; then
    printf 'wheels   %s\n' "${WHEELS[*]}"
else
    mkdir -p "$output"
    export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
    if [ -n "$wheels" ]; then
        install_wheels
    fi
fi
add_steps
