"""Data-parallel training as a program, for torchrun and horovodrun.

Without either it is one process.

torchrun --standalone --nproc-per-node 4 -m collectives_book.train_digits --backend p2p --algorithm
two_tree horovodrun -np 4 python -m collectives_book.train_digits --backend horovod python -m
collectives_book.train_digits

With ``--checkpoint FILE`` it goes on where an earlier run of it ended, or was ended. So it does
within one run if torchrun may start ranks again: ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun
--max-restarts 3 …``. Without that variable all starts share a store, in which a rank may find the
address of one that is gone (pytorch #135712).
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta

import torch

from collectives.backends import backend
from collectives.cli import seconds, whole
from collectives_book.digits import Samples, accuracy, digits
from collectives_book.training.replicas import Replicas, alone, over
from collectives_book.training.step import State, Step, Training, step
from collectives_book.training.train import train

# Steps from one printed loss to the next.
SHOWN = 10


def main(arguments: list[str]) -> None:
    """Train as the options say; rank 0 prints the losses and, at the end, the accuracy."""
    asked = options(arguments)
    torch.set_num_threads(1)
    training = Training(asked.steps, asked.batch, asked.rate, seed=asked.seed)
    replicas = join(asked.backend, asked.algorithm, asked.timeout)
    state = train(training, replicas, shown(step), file=asked.checkpoint, every=asked.every)
    if replicas.rank == 0:
        tested = digits()[1].to(replicas.device)
        print(
            f"{replicas.ranks} replicas: accuracy {accuracy(state.model, tested):.4f}",
            flush=True,
        )
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def options(arguments: list[str]) -> argparse.Namespace:
    """Return the command's options, checked."""
    parser = argparse.ArgumentParser(
        prog="train_digits", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--backend",
        default="p2p",
        help="what sums gradients: p2p (ours), gloo, nccl, horovod …",
    )
    parser.add_argument(
        "--algorithm",
        default="auto",
        help="of ours: ring, two_tree, … (`collectives list`)",
    )
    parser.add_argument("--steps", type=whole(), default=50)
    parser.add_argument(
        "--batch",
        type=whole(),
        default=128,
        help="samples of all replicas together",
    )
    parser.add_argument("--rate", type=float, default=0.1, help="the learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", metavar="FILE", help="go on from it, and write it")
    parser.add_argument(
        "--every",
        type=whole(),
        default=10,
        help="steps from one checkpoint to the next",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        help="seconds that a rank waits for the others",
    )
    return parser.parse_args(arguments)


def join(name: str, algorithm: str, timeout: float) -> Replicas:
    """Return the replicas that torchrun or horovodrun started; without either one process."""
    if not backend(name).is_started():
        if "RANK" not in os.environ:
            return alone()
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    return over(name, algorithm)


def shown(take_step: Step) -> Step:
    """Return the same step, of which rank 0 prints the loss now and then, and where it goes on."""
    begun = False

    def shown_step(state: State, batch: Samples, replicas: Replicas) -> float:
        nonlocal begun
        done = len(state.losses)
        loss = take_step(state, batch, replicas)
        if replicas.rank == 0 and (not begun or (done + 1) % SHOWN == 0):
            print(f"step {done + 1}: loss {loss:.6f}", flush=True)
        begun = True
        return loss

    return shown_step


if __name__ == "__main__":
    main(sys.argv[1:])
