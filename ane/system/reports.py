"""Keep libraries from reporting their use to their makers over the network."""

import os

# environment variable → the value that switches the reports off
SWITCHES = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime reports models and times to Microsoft from version 1.29 on
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray reports its use to Anyscale
}


def switch_off_reports() -> None:
    """Switch off the reports of ONNX Runtime and Ray in this process, unless the user has set their variables.

    Call this function before you import one of these libraries, because ONNX Runtime reports when it is imported. It
    would also write an identifier of the machine to disk, and a file to the temporary folder.
    """
    for name, value in SWITCHES.items():
        os.environ.setdefault(name, value)
