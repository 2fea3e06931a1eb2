"""The summation variants that are compared: an algorithm, a wire, a dtype, and whether errors are fed back."""

from __future__ import annotations

from typing import NamedTuple

NAMES = {"ring": "ring", "two_tree": "two trees", "parameter_server": "two-shot"}
SHORT = {"bfloat16": "bf16", "float32": "fp32"}


class Variant(NamedTuple):
    """How gradients are summed: the algorithm, after a slash the wire, the dtype that adds, and feedback of errors."""

    algorithm: str
    dtype: str = "float32"
    feedback: bool = False

    @property
    def wire(self) -> str:
        """The format of messages; the dtype itself where none is named.

        >>> Variant("ring/mxint8").wire, Variant("ring", "bfloat16").wire
        ('mxint8', 'bfloat16')
        """
        return self.algorithm.partition("/")[2] or self.dtype

    @property
    def columns(self) -> tuple[str, str, int]:
        """As a row has it; the last is 1 with feedback and 0 without."""
        return self.algorithm, self.dtype, int(self.feedback)


# One rank adds all contributions to a chunk at once in float32: as good as exact.
BASELINE = Variant("parameter_server")
# In the same dtype in another order: what the last bits alone change.
REORDERED = Variant("ring")
VARIANTS = (
    BASELINE,
    REORDERED,
    *(Variant(algorithm, "bfloat16") for algorithm in ("ring", "two_tree", "parameter_server")),
    *(Variant(f"parameter_server/{wire}", feedback=fed) for wire in ("mxint8", "mxfp4") for fed in (False, True)),
)


def name(variant: Variant) -> str:
    """What a variant is called.

    >>> name(Variant("ring", "bfloat16")), name(Variant("parameter_server/mxfp4", feedback=True))
    ('ring bf16', 'two-shot mxfp4 + feedback')
    """
    said = f"{NAMES[variant.algorithm.partition('/')[0]]} {SHORT.get(variant.wire, variant.wire)}"
    return f"{said} + feedback" if variant.feedback else said
