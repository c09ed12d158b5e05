"""Test what `ane convert` says when a signal stops it."""

import signal

from ane.cli import main
from converters.coreml import coreml_package


def test_a_stop_that_a_library_turned_into_an_error_says_that_packages_are_kept(source, tmp_path, monkeypatch, capsys):
    """safetensors turns an exception of its caller into a ValueError."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore Ctrl-C

    def stopped(*_):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape of object") from None

    monkeypatch.setattr(coreml_package, "measure_parity", stopped)
    arguments = ["convert", str(source.path), "--to", "coreml", "--networks", "rlg_auto", "-o", str(tmp_path / "out")]
    assert main(arguments) == 130
    lines = " ".join(capsys.readouterr().err.split())
    kept = f"Finished packages are kept in {tmp_path / 'out'}.converting. Run the same command again to continue."
    assert lines.endswith(f"{kept} ane: interrupted; no file was left half-written")
    assert "shape" not in lines
