"""Data-parallel training: gradients travel in buckets, while the backward pass computes the next ones.

`comm` is this rank's connection to the others: ``rank``, ``size``, ``all_reduce(tensor)`` which
returns a handle with ``wait()``, and ``broadcast(tensor, src)``. `network.py` has the network,
whose loss is a sum over this rank's samples.
"""

import torch
from network import Batch, Network


def buckets(sizes, most):
    """Put parameters into buckets: lists of indices into ``sizes``, the bytes of each parameter.

    Go from the last parameter to the first, because backward computes their gradients in this
    order. Put each into the current bucket if the bucket then has at most ``most`` bytes; otherwise
    begin a new one. A parameter with more than ``most`` bytes gets a bucket of its own.

    >>> buckets([50, 10, 40, 30, 200], 100)
    [[4], [3, 2, 1], [0]]
    """
    # solution: from the last parameter to the first, begin a new bucket where the current one would
    # get too large
    made, free = [], -1
    for index in reversed(range(len(sizes))):
        if sizes[index] > free:
            made.append([])
            free = most
        made[-1].append(index)
        free -= sizes[index]
    return made
    # end


class DataParallel:
    """A replica of a model.

    After ``backward()`` and ``finish()`` every gradient is the *average* over all ranks.
    """

    def __init__(self, model, comm, bucket_bytes):
        """Begin with the parameters of rank 0; prepare the buckets.

        Hook `ready` to every parameter that is trained.
        """
        # solution: broadcast all parameters from rank 0, make the buckets, hook self.ready to the
        # trained parameters
        self.comm = comm
        for parameter in model.parameters():
            comm.broadcast(parameter, 0)
        trained = [each for each in model.parameters() if each.requires_grad]
        made = buckets([each.numel() * each.element_size() for each in trained], bucket_bytes)
        self.buckets = [[trained[index] for index in bucket] for bucket in made]
        self.bucket_of = {}
        for number, bucket in enumerate(self.buckets):
            self.bucket_of |= dict.fromkeys(bucket, number)
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.begin()
        # end

    def begin(self):
        """Prepare for the next backward pass: no gradient is ready, no bucket is under way."""
        # solution: note how many gradients each bucket waits for
        self.missing = [len(bucket) for bucket in self.buckets]
        self.under_way = []
        # end

    def ready(self, parameter):
        """What backward calls as soon as ``parameter.grad`` is complete.

        Start each bucket that now is.
        """
        # solution: start each next bucket whose gradients are all ready
        self.missing[self.bucket_of[parameter]] -= 1
        while len(self.under_way) < len(self.buckets) and not self.missing[len(self.under_way)]:
            self.start()
        # end

    def start(self):
        """Start the all_reduce of the next bucket: one flat tensor, with zeros for a parameter without gradient."""
        # solution: copy the next bucket's gradients into one flat tensor, start its all_reduce,
        # keep both
        bucket = self.buckets[len(self.under_way)]
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
        flat = torch.cat([part.flatten() for part in parts])
        self.under_way.append((flat, self.comm.all_reduce(flat)))
        # end

    def finish(self):
        """After backward: start the buckets that were never complete, wait for all, and put the averages back."""
        # solution: start what is left, wait for every bucket, set each parameter's grad to the
        # average over the ranks
        while len(self.under_way) < len(self.buckets):
            self.start()
        for bucket, (flat, handle) in zip(self.buckets, self.under_way, strict=True):
            handle.wait()
            sizes = [each.numel() for each in bucket]
            for parameter, part in zip(bucket, (flat / self.comm.size).split(sizes), strict=True):
                parameter.grad = part.view_as(parameter)
        self.begin()
        # end


def train(comm, model, batches, bucket_bytes, rate):
    """One step for each batch: ``parameter -= rate * gradient``, with the gradient of the whole batch's *mean* loss."""
    # solution: a DataParallel; for each batch the gradients, weighted so that their average is
    # right, and the step
    replica = DataParallel(model, comm, bucket_bytes)
    for batch in batches:
        model.zero_grad()
        (model.loss(batch) * comm.size / batch.samples).backward()
        replica.finish()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad
    # end


def run(comm, network, batches, bucket_bytes, rate):
    """What the tests and the grader call on every rank: train, and return the parameters.

    This is given.
    """
    model = Network(comm, **network)
    made = [
        Batch(torch.tensor(x), torch.tensor(y), samples, tuple(skip))
        for x, y, samples, skip in batches
    ]
    train(comm, model, made, bucket_bytes, rate)
    return model.numbers()
