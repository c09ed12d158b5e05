"""Long attacks on the program: ``python -m tools.campaigns NAME [options]``; each prints its figures as JSON.

A campaign is a module with ``main(arguments) -> exit status``.
"""

import importlib
import sys

CAMPAIGNS = {
    "kill": "tools.campaigns.kill",  # work interrupted at every call that changes a file
    "fuzz": "tools.campaigns.fuzz",  # damaged and hostile inputs of every kind that is read
    "machines": "tools.campaigns.machines",  # simulated Macs that refuse or spoil one function after the other
    "growth": "tools.campaigns.growth",  # documents of all kinds, twice and four times as long
    "lanes": "tools.campaigns.lanes",  # threads that share a decoder, with cancels, failures and slow readers
    "clients": "tools.campaigns.clients",  # mixed clients of a server with few descriptors, some hostile
    "readings": "tools.campaigns.readings",  # the normaliser beside another one, and a file of readings
    "modules": "tools.campaigns.modules",  # small modules of torch, converted and interpreted
    "requests": "tools.campaigns.requests",  # malformed requests, and clients that leave a server
    "texts": "tools.campaigns.texts",  # texts that take the normaliser or the splitter long
    "defects": "tools.campaigns.defects",  # defects put in spoken chunks, which the checks of books must find
    "codes": "tools.campaigns.codes",  # sentences whose codes another engine or precision changes
    "official": "tools.campaigns.official",  # MLX's networks at the official sizes, beside torch's
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in CAMPAIGNS:
        sys.stderr.write(f"usage: python -m tools.campaigns {{{','.join(CAMPAIGNS)}}} [--help]\n")
        return 2
    return importlib.import_module(CAMPAIGNS[arguments[0]]).main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
