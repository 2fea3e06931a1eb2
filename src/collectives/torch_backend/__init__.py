"""``init_process_group("collectives")``: PyTorch programs on our algorithms, with two lines changed.

::

    import collectives.torch_backend

    torch.distributed.init_process_group("collectives")

DistributedDataParallel, FSDP2 (``fully_shard``), ZeroRedundancyOptimizer, DTensor, ``new_group``,
``async_op`` and all functions of `torch.distributed` then work as over gloo. The algorithm is, in
this order:

1. that of the group's options: ``init_process_group("collectives",
   pg_options=Options("two_tree"))``, likewise ``new_group``; a group without options has those of
   the default group;
2. that which the environment variable COLLECTIVES_ALGORITHM names;
3. "auto" (`collectives.autotune`).

A collective that has no algorithm of that name takes "auto": two_tree reduces, but does not gather.
One of your own, ``Options("file.py:function")``, serves the collective that its schedule is for.

All collectives run our schedules. Through the gloo group inside each group the ranks find each
other. It also carries ``send``, ``recv`` and reductions of sparse tensors. NCCL carries the
messages of CUDA tensors; this path has run on one GPU that two ranks shared, and not on several.

All calls on one group run on one thread, in the order in which they were made; every rank has to
make them in the same order. A peer that is dead or silent, or makes a different call, ends
``wait()`` on every rank within the group's timeout: RuntimeError names the collective, the
algorithm, the step and the peer by its global rank, the sub-group, and under
DistributedDataParallel the bucket. Then the group is unusable.

So that no rank continues alone, calls with a root or with split sizes end with a barrier: a
broadcast costs 2 log2(p) latencies, not log2(p). A rank that calls after its peers have given up on
it fails, too. Ranks that share memory decide this by an atomic word. Over TCP a rank looks for
aborts when it has all data, so it returns alone only if its peers give up while its last message is
in flight.

A callback of a call (``then``) runs on that thread, too. It may make calls on the group and wait
for them: they come before all that is queued, so PowerSGD's hooks work with any number of buckets.
torch's profiler shows each call as ``collectives:all_reduce`` and the like.

What differs from gloo:

- A call with wrong arguments raises ValueError before anything is sent, and ``wait(timeout)``
  raises TimeoutError. Both are RuntimeError, too, which is what gloo raises.
- A tensor to write into that ``expand`` has made is refused, because its elements share memory:
  give its ``clone()``. gloo writes past its end. Outputs of one call that overlap are refused, too;
  gloo leaves what it writes last.
- ``destroy_process_group`` ends every call that has not ended. Its error says that the group was
  destroyed, and so do those of ranks that are in the same call. gloo's works wait for peers until
  these end.
- DistributedDataParallel's built-in hook FP16_COMPRESS is registered as torch's
  ``fp16_compress_hook``.
- torch refuses ``monitored_barrier`` to every back end but gloo: take ``new_group(backend="gloo")``
  for it, or ``barrier``, whose error names a rank that is late, too.
- Accelerate and the Trainer of Hugging Face refuse the name: call
  ``init_process_group("collectives")`` before you make their objects, and they take the group that
  is there.
- ``"cpu:collectives,cuda:nccl"``: torch gives a group of ours all devices, so a CUDA tensor raises
  ValueError. Name "collectives" alone, which takes NCCL for its messages, or make a second group
  over nccl.
- A program that calls ``init_process_group()`` without a name takes ours on CPUs after
  ``dist.Backend.default_device_backend_map["cpu"] = "collectives"``.
- Parts of different sizes cost a ``reduce_scatter`` as much as an all-reduce of all of them.

>>> import torch
>>> from torch import distributed as dist
>>> dist.init_process_group("collectives", store=dist.HashStore(), rank=0, world_size=1, pg_options=Options("two_tree"))
>>> x = torch.arange(3.0)
>>> dist.all_reduce(x, dist.ReduceOp.AVG)
>>> dist.all_reduce(x, async_op=True).get_future().wait()
[tensor([0., 1., 2.])]
>>> dist.destroy_process_group()
>>> Options("rnig")  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
ValueError: algorithm: got 'rnig', expected auto or one of ...
"""

from __future__ import annotations

from collectives.errors import with_extra

try:
    import torch
    from torch import distributed as dist
except ModuleNotFoundError as error:
    raise with_extra(error, "run") from None

from collectives.torch_backend.comm_hook import hook
from collectives.torch_backend.group import NAME, make
from collectives.torch_backend.options import Options
from collectives.torch_backend.reducer import fit

__all__ = ["Options", "hook"]

# Importing this module is what makes the name known to torch.
fit()
dist.Backend.register_backend(
    NAME, make, extended_api=True, devices=["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
)
