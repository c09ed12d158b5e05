"""Limits of the Neural Engine that graphs must respect and the lint checks."""

MAX_AXIS = 16384        # largest width or height (hollance/neural-engine; ane-guide, chapter 17)
MAX_CHANNELS = 65536    # (ane-guide, chapter 17)
ROW_BYTES = 64          # the last axis is padded to a multiple of this (apple/coreai-models)
STATE_WIDTH = 32        # a state's last axis is a multiple of this (coremltools issue 2631)
ON_CHIP = 2_000_000      # bytes of the largest value that stays on the chip (ane-guide, chapter 9)
