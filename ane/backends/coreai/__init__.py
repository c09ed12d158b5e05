"""Run the functions of saved Core ML packages on Core AI, an Apple runtime with a wheel that also runs on Linux.

Read the files in this order:

    lowering  translates each op of Core ML's MIL language to operations of Core AI
    program   writes a function of a package as a Core AI asset (.aimodel)
    runtime   loads and calls functions, for ``ane.backends.packaged``

``ane.backends.mil`` has an interpreter for the same packages, which shares no code with this folder. If both compute
the same numbers, both probably read the package correctly.
"""
