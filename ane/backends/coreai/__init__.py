"""Core AI, Apple's runtime that also has a Linux wheel: runs functions of saved Core ML packages.

Files in reading order:

    lowering  MIL ops as operations of Core AI's dialect: one small function per op
    program   functions of a package as one asset (.aimodel), which stores each weight once
    runtime   makes Core AI available to ``ane.backends.packaged``

The lowering shares no code with the kernels of ``ane.backends.mil``: what both agree on is what the package says.
"""
