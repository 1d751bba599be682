"""Flash attention for MLX: fused forward and backward with memory linear in the length.

>>> from flashrt import attention
>>> o = attention(q, k, v, causal=True)
"""

from flashrt._errors import UnsupportedError
from flashrt._version import __version__
from flashrt.attention import attention
from flashrt.explain import explain, supported
from flashrt.patch import patch_mlx, unpatch_mlx
from flashrt.varlen import attention_varlen

__all__ = [
    "UnsupportedError",
    "__version__",
    "attention",
    "attention_varlen",
    "explain",
    "patch_mlx",
    "supported",
    "unpatch_mlx",
]
