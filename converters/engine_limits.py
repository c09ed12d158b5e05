"""Limits of the Neural Engine that graphs must respect and the lint checks."""

MAX_AXIS = 16384        # largest size of an axis (hollance/neural-engine; ane-guide: 65536 from the M4 on)
ROW_BYTES = 64          # the last axis is padded to a multiple of this (apple/coreai-models)
