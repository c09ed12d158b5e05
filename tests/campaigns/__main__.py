"""Long attacks on the program: ``python -m tests.campaigns NAME [options]``; each prints its figures as JSON.

A campaign is a module with ``main(arguments) -> exit status``.
"""

import importlib
import sys

CAMPAIGNS = {
    "kill": "tests.campaigns.kill",  # work interrupted at every call that changes a file
    "fuzz": "tests.campaigns.fuzz",  # damaged and hostile inputs of every kind that is read
    "machines": "tests.campaigns.machines",  # simulated Macs that refuse or spoil one function after the other
    "growth": "tests.campaigns.growth",  # documents of all kinds, twice and four times as long
    "lanes": "tests.campaigns.lanes",  # threads that share a decoder, with cancels, failures and slow readers
    "clients": "tests.campaigns.clients",  # mixed clients of a server with few descriptors, some hostile
    "readings": "tests.campaigns.readings",  # the normaliser beside another one, and a file of readings
    "modules": "tests.campaigns.modules",  # small modules of torch, converted and interpreted
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in CAMPAIGNS:
        sys.stderr.write(f"usage: python -m tests.campaigns {{{','.join(CAMPAIGNS)}}} [--help]\n")
        return 2
    return importlib.import_module(CAMPAIGNS[arguments[0]]).main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
