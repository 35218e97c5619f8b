#!/usr/bin/env python3
"""Writes blocks.txt: blocks of every GGUF format and the weights that they stand for.

    pip install gguf==0.19.0 && python3 make_blocks.py > blocks.txt

The weights are those of the package's own dequantisation (gguf.quants), in numpy, which shares no code with ggml
or with this project. Bytes are random but for the scales: ordinary ones and extreme ones in turn.
"""

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

# Blocks, bytes of a block, offsets of f16 scales.
FORMATS = {
    "F32": (16, 4, []), "F16": (16, 2, [0]), "BF16": (16, 2, []),
    "Q4_0": (5, 18, [0]), "Q4_1": (5, 20, [0, 2]), "Q5_0": (5, 22, [0]), "Q5_1": (5, 24, [0, 2]),
    "Q8_0": (5, 34, [0]), "Q2_K": (3, 84, [80, 82]), "Q3_K": (3, 110, [108]), "Q4_K": (3, 144, [0, 2]),
    "Q5_K": (3, 176, [0, 2]), "Q6_K": (3, 210, [208]), "IQ1_S": (3, 50, [0]), "IQ1_M": (3, 56, []),
    "IQ2_XXS": (3, 66, [0]), "IQ2_XS": (3, 74, [0]), "IQ2_S": (3, 82, [0]), "IQ3_XXS": (3, 98, [0]),
    "IQ3_S": (3, 110, [0]), "IQ4_NL": (5, 18, [0]), "IQ4_XS": (3, 136, [0]), "TQ1_0": (3, 54, [52]),
    "TQ2_0": (3, 66, [64]), "MXFP4": (6, 17, []), "NVFP4": (6, 36, []),
}
# Subnormal, zero, largest, infinite.
EXTREME = [0x8001, 0x0000, 0x7BFF, 0x03FF, 0xFC00]

print("# Blocks and the weights they stand for, as the Python package gguf 0.19.0 dequantises them: format, bytes, and the")
print("# bits of the weights (little-endian f32) in hexadecimal. Written by make_blocks.py.")
rng = np.random.default_rng(20240607)
for name, (count, size, scales) in FORMATS.items():
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for i in range(count):
        for at in scales:
            extreme = i % 2 == 1
            bits = EXTREME[i // 2 % 5] if extreme else np.float16(rng.normal() * 0.02).view(np.uint16)
            blocks[i, at] = int(bits) & 255
            blocks[i, at + 1] = int(bits) >> 8
    if name == "IQ1_M":
        # The f16 scale is the top nibbles of the last four words.
        for i in range(count):
            bits = [0x2155, 0x8001, 0x7BFF][i]
            for j in range(4):
                blocks[i, 49 + 2 * j] = blocks[i, 49 + 2 * j] & 15 | (bits >> (4 * j) & 15) << 4
    if name == "MXFP4":
        blocks[:, 0] = [0, 1, 2, 120, 254, 255]
    if name == "NVFP4":
        blocks[0, :4] = [0, 1, 7, 8]
        blocks[1, :4] = [0x7E, 0x7F, 0x80, 0xFF]
    if name == "F32":
        blocks[0] = [0, 0, 0, 0x80]
        blocks[1] = [1, 0, 0, 0]
    with np.errstate(all="ignore"):
        weights = dequantize(blocks.reshape(-1), Type[name]).astype(np.float32)
    print(name, blocks.tobytes().hex(), weights.astype("<f4").tobytes().hex())
