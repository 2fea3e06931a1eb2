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
GRADIENT = int(needs.gradient_bytes(MODEL.parameters))  # bytes; the parameters take as many
# Seconds of a step without communication, and of its backward pass.
COMPUTING = (needs.FORWARD + needs.BACKWARD) * MODEL.parameters * MODEL.sequence / needs.H100.achieved
BACKWARD = COMPUTING * needs.BACKWARD / (needs.FORWARD + needs.BACKWARD)

# What the job does with each collective, and what that costs.
CALLS = {
    "all_reduce": (
        "sums {} of gradients a step",
        "If nothing overlaps, the all-reduce by {} adds {} to the computing.",
    ),
    "all_gather": (
        "gathers {} of new parameters a step, because each GPU has updated only its part of them (ZeRO-1)",
        "If nothing overlaps, the all-gather by {} adds {} to the computing.",
    ),
    "broadcast": (
        "begins with a broadcast of {} of parameters from rank 0",
        "The broadcast by {} takes as long as {} of the computing of one step, and happens once.",
    ),
}


def simulated(algorithm: str, nbytes: int = GRADIENT, collective: str = "all_reduce") -> float:
    """Simulated seconds of one call, for the whole gradient or a bucket; pipelined in the best number of segments.

    >>> round(simulated("ring"), 2), round(COMPUTING, 2)
    (0.63, 0.98)
    """
    return float(row(Case(collective, algorithm, GPUS, nbytes, machine(ON)))["seconds"])


def step(*algorithms: str, collective: str = "all_reduce") -> Picture:
    """The job's call of a collective by each of these algorithms, beside the computing of a step, and a caption."""
    times = {name: simulated(name, collective=collective) for name in algorithms}
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
    drawn = picture(
        paint, f"Simulated seconds, beside the computing of a step: {said}.", kit.WIDTH, 0.5 + 0.34 * len(bars)
    )
    return replace(drawn, caption=_caption(times, collective))


def _caption(times: dict[str, float], collective: str) -> str:
    least, share = statements.least(times), f"{min(times.values()) / COMPUTING:.0%}"
    does, costs = CALLS[collective]
    job = f"The job: {MODEL.name} on {GPUS} H100 {does.format(f'{GRADIENT / 1e9:.0f} GB')}. Simulated on {ON}."
    ports = " The ring leaves each node through one of its eight ports." if "ring" in times else ""
    return f"{job} {costs.format(least, share)}{ports}"


def exposed(algorithm: str, bucket: int) -> float:
    """Seconds by which all-reduces in buckets, each begun when its gradients are ready, outlast the backward pass.

    >>> exposed("multi_channel_ring", 25 << 20) < exposed("ring", 25 << 20)
    True
    """
    buckets = -(-GRADIENT // bucket)
    ready = overlap.ready_times(buckets, BACKWARD)
    return overlap.exposed(ready, [simulated(algorithm, bucket)] * buckets)


def wasted(algorithm: str, tokens: float = 1e12) -> float:
    """GPU hours that waiting for the all-reduce costs while the model sees so many tokens, if nothing overlaps.

    >>> round(wasted("multi_channel_ring") / wasted("ring"), 2)
    0.13
    """
    steps = tokens / (GPUS * MODEL.sequence)
    return steps * simulated(algorithm) * GPUS / 3600
