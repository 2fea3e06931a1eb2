"""Needs of a training run: bytes of memory, operations, and how long GPUs take for them.

Plain numbers, no tensor.
"""

from __future__ import annotations

from typing import NamedTuple

# Bytes for each parameter while a model is trained by Adam in mixed precision (Rajbhandari et al.,
# 2020, section 3.1): the numbers to compute with in 16 bits, and the optimizer's own in 32.
STATE = {
    "parameters": 2,
    "gradients": 2,
    "float32 parameters": 4,
    "Adam's mean": 4,
    "Adam's variance": 4,
}

# Operations for each parameter and token: 2 forward, 4 backward (Kaplan et al., 2020, section 2.1).
FORWARD, BACKWARD = 2, 4

DAY = 86_400.0


class Transformer(NamedTuple):
    """A language model, as far as its needs depend on it; ``tokens`` is what it was trained on."""

    name: str
    parameters: float
    layers: int
    width: int
    heads: int
    sequence: int
    tokens: float


class Gpu(NamedTuple):
    """Memory in bytes, and bfloat16 operations in a second: the data sheet's, and what training achieves."""

    name: str
    memory: float
    peak: float
    achieved: float


# Grattafiori et al. (2024): table 3 has the models, table 4 the 400 TFLOP/s of a GPU among 16,384.
# Radford et al. (2019) and Brown et al. (2020) have the GPT models; GPT-2's tokens are not
# published.
MODELS = (
    Transformer("GPT-2 1.5B", 1.5e9, 48, 1600, 25, 1024, float("nan")),
    Transformer("Llama 3 8B", 8e9, 32, 4096, 32, 8192, 15e12),
    Transformer("Llama 3 70B", 70e9, 80, 8192, 64, 8192, 15e12),
    Transformer("GPT-3 175B", 175e9, 96, 12288, 96, 2048, 300e9),
    Transformer("Llama 3 405B", 405e9, 126, 16384, 128, 8192, 15.6e12),
)
H100 = Gpu("H100", 80e9, 989e12, 400e12)


def state_bytes(parameters: float) -> float:
    """Return the bytes of parameters, gradients and the optimizer, whatever the batch.

    >>> state_bytes(1.5e9) / 1e9
    24.0
    """
    return parameters * sum(STATE.values())


def activation_bytes(
    model: Transformer, samples: int = 1, kept: str = "all but attention"
) -> float:
    """Return the bytes that forward keeps for backward, in 16 bits (Korthikanti et al., 2022, equations 1, 4, table 2).

    Per layer ``sequence * samples * width`` times 34, and ``5 * heads * sequence / width`` more for
    the attention matrices. Those are computed again where ``kept`` is "all but attention", all but
    a layer's input where it is "inputs". The formula is for GPT's layer; other layers differ by a
    small factor.

    >>> round(activation_bytes(MODELS[3]) / 1e9, 1)
    82.1
    """
    attention = 5 * model.heads * model.sequence / model.width
    factor = {"all": 34 + attention, "all but attention": 34, "inputs": 2}[kept]
    return model.layers * model.sequence * samples * model.width * factor


def operations(model: Transformer) -> float:
    """Return the floating-point operations of the whole training run.

    >>> f"{operations(MODELS[-1]):.1e}"
    '3.8e+25'
    """
    return (FORWARD + BACKWARD) * model.parameters * model.tokens


def days(model: Transformer, gpus: int, gpu: Gpu = H100) -> float:
    """Return the days of training where nothing is lost between GPUs, at the rate that one achieves.

    >>> round(days(MODELS[-1], 16_384))
    67
    """
    return operations(model) / (gpus * gpu.achieved) / DAY


def gradient_bytes(parameters: float) -> float:
    """Return the bytes that replicas sum in every step: a 16-bit gradient for each parameter."""
    return parameters * STATE["gradients"]
