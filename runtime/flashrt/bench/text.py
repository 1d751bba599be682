"""Queries, keys and values from real text: its bytes, embedded, with rotary positions."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

WIDTH = 256


def default_text() -> Path:
    """Return a text that is always there: the package's own source."""
    return Path(__file__).resolve().parent.parent / "attention.py"


def qkv(
    text: Path, batch: int, heads: int, kv_heads: int, length: int, dim: int, dtype: mx.Dtype
) -> tuple[mx.array, mx.array, mx.array]:
    """Project embedded bytes of a text to (B, H, L, D) queries and (B, Hk, L, D) keys and values.

    The text is repeated to the length; entries of a batch start at different places. Weights are
    random with a fixed seed, scaled as a model's are at the start of training.
    """
    content = text.read_bytes()
    if not content:
        raise ValueError(f"{text} is empty")
    need = batch * length
    data = mx.array(list((content * (-(-need // len(content))))[:need])).reshape(batch, length)
    mx.random.seed(0)
    x = mx.random.normal((256, WIDTH))[data]

    def project(heads: int) -> mx.array:
        weight = mx.random.normal((WIDTH, heads * dim)) * WIDTH**-0.5
        projected: mx.array = x @ weight
        return projected.reshape(batch, length, heads, dim).swapaxes(1, 2)

    def rotate(y: mx.array) -> mx.array:
        even = dim - dim % 2
        if even == 0:
            return y
        turned: mx.array = mx.fast.rope(
            y, even, traditional=False, base=10000.0, scale=1.0, offset=0
        )
        return turned

    q, k, v = rotate(project(heads)), rotate(project(kv_heads)), project(kv_heads)
    q, k, v = q.astype(dtype), k.astype(dtype), v.astype(dtype)
    mx.eval(q, k, v)
    return q, k, v
