"""Our own back end on ranks that are threads of one process: nothing is launched, and no message meets a network."""

from collectives.backends.p2p import OverTcp


class InProcess(OverTcp):
    """The same programs as p2p, over memory; times are those of one interpreter, so only good to compare code."""

    launcher = "threads"


IN_PROCESS = InProcess("in_process")
