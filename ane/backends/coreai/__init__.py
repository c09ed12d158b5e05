"""Run functions of saved Core ML packages on Core AI, Apple's runtime that also has a Linux wheel.

Files in reading order:

    lowering  MIL ops as operations of Core AI's dialect: one small function per op
    program   functions of a package as one asset (.aimodel), which stores each weight once
    runtime   makes Core AI available to ``ane.backends.packaged``

The lowering shares no code with the operations of ``ane.backends.mil``. So if both agree, that is what the package
says.
"""
