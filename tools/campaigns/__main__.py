"""Run a campaign, which is a long attack on the program: ``python -m tools.campaigns NAME [options]``.

A campaign is a module with ``main(arguments)``, which prints its figures as JSON and returns the exit status.
"""

import importlib
import sys

CAMPAIGNS = {
    "kill": "tools.campaigns.kill",  # interrupts work at every call that changes a file
    "fuzz": "tools.campaigns.fuzz",  # feeds damaged and hostile inputs to every reader
    "machines": "tools.campaigns.machines",  # simulates Macs that refuse or spoil one function at a time
    "growth": "tools.campaigns.growth",  # times documents of every kind at three sizes
    "lanes": "tools.campaigns.lanes",  # lets threads share a decoder, with cancels, failures and slow readers
    "clients": "tools.campaigns.clients",  # mixes friendly and hostile clients of a server with few descriptors
    "readings": "tools.campaigns.readings",  # compares the normaliser with NeMo's, and with a file of readings
    "modules": "tools.campaigns.modules",  # converts small torch modules and interprets them
    "requests": "tools.campaigns.requests",  # sends malformed requests, and lets clients leave
    "texts": "tools.campaigns.texts",  # looks for texts that slow the normaliser or the splitter
    "defects": "tools.campaigns.defects",  # puts defects in spoken chunks, which checks of books must find
    "codes": "tools.campaigns.codes",  # counts sentences whose codes another engine changes
    "official": "tools.campaigns.official",  # compares MLX's networks with torch's at the official sizes
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in CAMPAIGNS:
        sys.stderr.write(f"usage: python -m tools.campaigns {{{','.join(CAMPAIGNS)}}} [--help]\n")
        return 2
    return importlib.import_module(CAMPAIGNS[arguments[0]]).main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
