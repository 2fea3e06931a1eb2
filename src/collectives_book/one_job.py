"""One training job that the chapters come back to: Llama 3 8B on 64 H100, by data parallelism alone.

In every step each GPU computes on one sequence, and all GPUs sum the gradient of all parameters. The optimizer's state
is divided among the GPUs, because it would not fit into one of them.
"""

from dataclasses import replace

from matplotlib.figure import Figure

from collectives.figures.style import Picture, Theme, mark, on_page, picture
from collectives.machine import machine
from collectives.simulator import overlap
from collectives.simulator.scaling import Case, row
from collectives.units import duration
from collectives_book import needs
from collectives_book.figures import kit, statements

MODEL = next(model for model in needs.MODELS if model.name == "Llama 3 8B")
GPUS, ON = 64, "dgx-h100"
GRADIENT = int(needs.gradient_bytes(MODEL.parameters))  # bytes
# Seconds of a step without communication, and of its backward pass.
COMPUTING = (needs.FORWARD + needs.BACKWARD) * MODEL.parameters * MODEL.sequence / needs.H100.achieved
BACKWARD = COMPUTING * needs.BACKWARD / (needs.FORWARD + needs.BACKWARD)


def all_reduce_seconds(algorithm: str, nbytes: int = GRADIENT) -> float:
    """Simulated seconds of one all-reduce, of the whole gradient or a bucket; pipelined in the best number of segments.

    >>> round(all_reduce_seconds("ring"), 2), round(COMPUTING, 2)
    (0.63, 0.98)
    """
    return float(row(Case("all_reduce", algorithm, GPUS, nbytes, machine(ON)))["seconds"])


def step(*algorithms: str) -> Picture:
    """The all-reduce of a step by each of these algorithms, beside the computing, with a caption that compares them."""
    times = {name: all_reduce_seconds(name) for name in algorithms}
    bars = {"computing": COMPUTING} | times

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        places = [-nth for nth in range(len(bars))]
        colours = [theme.faint, *(on_page(mark(name).colour, theme) for name in times)]
        drawn = axes.barh(places, list(bars.values()), color=colours, height=0.7)
        axes.set_yticks(places, list(bars))
        axes.bar_label(drawn, [duration(seconds) for seconds in bars.values()], padding=3)
        axes.set_xlim(right=1.2 * max(bars.values()))
        axes.xaxis.set_visible(False)
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)

    said = "; ".join(f"{name} {duration(seconds)}" for name, seconds in bars.items())
    drawn = picture(paint, f"Seconds of a step, simulated: {said}.", kit.WIDTH, 0.5 + 0.34 * len(bars))
    return replace(drawn, caption=_caption(times))


def _caption(times: dict[str, float]) -> str:
    least = statements.least(times)
    added = f"{min(times.values()) / COMPUTING:.0%}"
    job = f"The job: {MODEL.name} on {GPUS} H100 sums {GRADIENT / 1e9:.0f} GB of gradients a step. Simulated on {ON}."
    ports = " The ring leaves each node through one of its eight ports." if "ring" in times else ""
    return f"{job} If nothing overlaps, the all-reduce by {least} adds {added} to the computing.{ports}"


def exposed(algorithm: str, bucket: int) -> float:
    """Seconds by which all-reduces in buckets, each begun when its gradients are ready, outlast the backward pass.

    >>> exposed("multi_channel_ring", 25 << 20) < exposed("ring", 25 << 20)
    True
    """
    buckets = -(-GRADIENT // bucket)
    ready = overlap.ready_times(buckets, BACKWARD)
    return overlap.exposed(ready, [all_reduce_seconds(algorithm, bucket)] * buckets)


def wasted(algorithm: str, tokens: float = 1e12) -> float:
    """GPU hours that waiting for the all-reduce costs while the model sees so many tokens, if nothing overlaps.

    >>> round(wasted("multi_channel_ring") / wasted("ring"), 2)
    0.13
    """
    steps = tokens / (GPUS * MODEL.sequence)
    return steps * all_reduce_seconds(algorithm) * GPUS / 3600
