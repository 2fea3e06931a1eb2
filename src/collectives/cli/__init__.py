"""The command line: see ``collectives --help``. Data go to standard output, all else to standard error.

A verb is an object with two functions, imported when it is asked for: ``add_arguments`` adds its options to a parser,
``run`` takes the parsed arguments and returns the exit code, None for 0. Other packages add verbs: an entry point of
the group ``collectives.verbs`` names a module, or ``module:attribute`` for one of several in it. The first line of its
docstring is the help, without "The verb ``NAME``: " in front.
"""

import argparse
import importlib
import re
import sys
from collections import Counter
from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from typing import Any

from collectives.cli import signals
from collectives.cli.options import UsageError
from collectives.errors import short, unknown
from collectives.schedule import ScheduleError

OWN = {
    "list": "every algorithm, with its cost on p ranks",
    "show": "one schedule as a table of steps and ranks",
    "verify": "prove schedules by counting every contribution",
    "simulate": "how long a schedule takes on a machine of any size",
    "bound": "the least time of a collective on a machine's links, and the cut that sets it",
    "error": "how far its sums of floats are from the exact ones",
    "synthesize": "find a schedule with few steps for a topology, or prove that none exists",
    "export": "a schedule for the tools of others",
    "bench-simulator": "how fast `simulate` is, up to a million ranks (minutes)",
    "calibrate": "measure a link between two ranks: a machine for `simulate`",
    "backends": "which back ends are here, and why one is not",
    "bench": "measure collectives on real ranks, also in nccl-tests' table",
    "cluster": "a cluster in slow motion: a command on each of its emulated hosts",
}
GROUP, DISTRIBUTION = "collectives.verbs", "collective-communication"

# The extra that brings all that a verb needs, where the smallest one that has a missing package does not.
EXTRAS = dict.fromkeys(("error", "backends", "bench", "calibrate"), "run") | {"synthesize": "synthesis"}
EXTRAS |= dict.fromkeys(("handout", "grade", "grade-all", "leaderboard"), "course") | {"run": "experiments"}


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 when something failed, 2 for wrong input or a missing package.

    130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 141 when the reader of our output has gone.
    """
    signals.open_standard_streams()
    typed = sys.argv[1:] if argv is None else argv
    with signals.signals():
        try:
            arguments = _parsed(typed)
            return int(_module(arguments.verb).run(arguments) or 0)
        except UsageError as error:
            return signals.failed(error, 2)
        except ModuleNotFoundError as error:
            return signals.failed(_missing(typed[0], str(error.name)), 2)
        except (ScheduleError, RuntimeError, ImportError) as error:
            return signals.failed(error, 1)
        except MemoryError as error:
            return signals.failed(f"memory is used up: {error}", 1)
        except OverflowError as error:
            return signals.failed(f"a number is too large: {error}", 1)
        except KeyboardInterrupt as ended:
            return signals.failed(ended, getattr(ended, "code", 130))
        except BrokenPipeError:
            if signals.reader_has_gone():
                return 141
            raise
        except OSError as error:
            return signals.failed(error, 1)
        finally:
            signals.flush()


def verbs() -> dict[str, str]:
    """Every verb and what it does: those of this package, then those that other packages add."""
    return OWN | {verb: _first_line(verb) for verb in _added()}


@cache
def _added() -> dict[str, EntryPoint]:
    return {each.name: each for each in sorted(entry_points(group=GROUP))}


def _first_line(verb: str) -> str:
    """Return the help of another package's verb, from its docstring."""
    text = str(_module(verb).__doc__).splitlines()[0].rpartition("``: ")[2].rstrip(".")
    return text[:1].lower() + text[1:]


def _missing(verb: str, module: str) -> str:
    """Return the message for a module that is not installed, with the extra that brings it, as our metadata say."""
    needs = [
        re.match(r"([\w-]+).*extra == .([\w-]+)", each)
        for ours in distributions(name=DISTRIBUTION)
        for each in ours.requires or ()
    ]
    sizes = Counter(need[2] for need in needs if need)
    having = {need[2] for need in needs if need and module.partition(".")[0] in need[1]}  # yaml is in pyyaml
    hints = [
        f": pip install '{DISTRIBUTION}[{each}]'"
        for each in sorted(having, key=lambda one: (one != EXTRAS.get(verb), sizes[one]))
    ]
    return f"{verb} needs {module}, which is not installed{''.join(hints[:1])}"


def _parsed(typed: list[str]) -> argparse.Namespace:
    """The arguments of a command. Raises UsageError for an unknown verb or option, with the nearest known one."""
    if typed and not typed[0].startswith("-") and typed[0] not in OWN and typed[0] not in _added():
        raise UsageError(unknown("command", typed[0], verbs()))
    of = parser(typed[:1])
    arguments, rest = of.parse_known_args(typed)
    options = [name for name in rest if name.startswith("-")]
    if options:
        raise UsageError(unknown(f"option of {arguments.verb}", options[0], _options(arguments.verb)))
    if rest:
        raise UsageError(f"too many arguments for {arguments.verb}: got {' '.join(map(short, rest))}, expected none")
    return arguments


def _options(verb: str) -> list[str]:
    """The options of a verb."""
    of_verb = argparse.ArgumentParser()
    _module(verb).add_arguments(of_verb)
    return [name for action in of_verb._actions for name in action.option_strings if name.startswith("--")]


def parser(needed: Collection[str]) -> argparse.ArgumentParser:
    """The parser of the verbs, with the arguments of those ``needed``.

    Other packages' verbs are imported only where they are needed, or none at all is, as for ``--help``.
    """
    top = argparse.ArgumentParser("collectives", description="Collective algorithms: proved, shown and measured.")
    release = next((ours.version for ours in distributions(name=DISTRIBUTION)), "as a folder, not installed")
    top.add_argument("--version", action="version", version=f"{DISTRIBUTION} {release}")
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="verb")
    others = () if needed and OWN.keys() >= set(needed) else sorted(_added().keys() & set(needed)) or _added()
    known = OWN | {verb: _first_line(verb) for verb in others}
    for verb, text in known.items():
        of_verb = commands.add_parser(verb, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if verb in needed:
            _module(verb).add_arguments(of_verb)
    return top


def _module(verb: str) -> Any:
    if verb in OWN:
        return importlib.import_module(f"{__name__}.{verb.replace('-', '_')}")
    return _added()[verb].load()
