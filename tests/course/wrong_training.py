"""Wrong trainings."""

from course.wrong import Wrong

READY = """        self.missing[self.bucket_of[parameter]] -= 1
        while len(self.under_way) < len(self.buckets) and not self.missing[len(self.under_way)]:
            self.start()
"""
SEND = "        self.under_way.append((flat, self.comm.all_reduce(flat)))\n"
LEFT = "        while len(self.under_way) < len(self.buckets):\n            self.start()\n"
WAIT = "        for bucket, (flat, handle) in zip(self.buckets, self.under_way, strict=True):\n"
KEEP = "        self.comm = comm\n"
STEP = "                    parameter -= rate * parameter.grad\n"

# A bucket starts when it is complete, whatever the other buckets and the other ranks do.
OUT_OF_ORDER = {
    READY: """        number = self.bucket_of[parameter]
        self.missing[number] -= 1
        if not self.missing[number]:
            self.start(number)
""",
    "    def start(self):": "    def start(self, number):",
    "self.buckets[len(self.under_way)]\n": "self.buckets[number]\n",
    "self.under_way = []": "self.under_way = {}",
    SEND: "        self.under_way[number] = (flat, self.comm.all_reduce(flat))\n",
    LEFT: "        for number in (n for n, left in enumerate(self.missing) if left):\n            self.start(number)\n",
    WAIT: "        for bucket, (flat, handle) in ((self.buckets[n], each) for n, each in self.under_way.items()):\n",
}

WRONG = [
    Wrong(
        "one all_reduce after backward",
        "buckets overlap",
        {"each in trained], bucket_bytes)": "each in trained], 1 << 30)"},
        is_quick=True,
    ),
    Wrong(
        "waits inside the hook", "overlap", {SEND: SEND + "        self.under_way[-1][1].wait()\n"}
    ),
    Wrong(
        "a bucket for each parameter",
        "buckets",
        {
            "        made = buckets(": "        made = [[n] for n in reversed(range(len(trained)))] or buckets("
        },
    ),
    Wrong("sums instead of averages", "average steps unused", {"(flat / self.comm.size)": "flat"}),
    Wrong(
        "ignores how many samples a rank has",
        "uneven steps",
        {
            "model.loss(batch) * comm.size / batch.samples": "model.loss(batch) / max(1, len(batch.x))"
        },
    ),
    Wrong(
        "one all_reduce after backward, then the parameters again",
        "buckets overlap",
        {
            "each in trained], bucket_bytes)": "each in trained], 1 << 30)",
            STEP: STEP
            + "        for parameter in model.parameters():\n            comm.broadcast(parameter, 0)\n",
        },
    ),
    Wrong(
        "only the last rank divides",
        "average steps unused",
        {
            "(flat / self.comm.size)": "(flat / (self.comm.size if self.comm.rank == self.comm.size - 1 else 1))"
        },
        says={"average": "p = 2: the gradient of rank 0 is 2 times"},
    ),
    Wrong(
        "divides by two on any number of ranks",
        "average",
        {"(flat / self.comm.size)": "(flat / 2)"},
        says={"average": "p = 3: the gradient of rank 0 is 1.5 times"},
    ),
    Wrong(
        "float32 on the wire",
        "steps bytes",
        {
            SEND: "        flat = flat.float()\n" + SEND,
            "(flat / self.comm.size)": "(flat.double() / self.comm.size)",
        },
        says={"steps": "as much as float32 rounds", "bytes": "0.50 times as many, in float32"},
        points=85,
    ),
    Wrong("no broadcast", "broadcast", {"comm.broadcast(parameter, 0)": "pass"}),
    Wrong("gradients stay from step to step", "steps unused", {"        model.zero_grad()\n": ""}),
    Wrong("forward order", "order overlap", {"for bucket in made]": "for bucket in made[::-1]]"}),
    Wrong(
        "each gradient twice",
        "bytes overlap",
        {
            WAIT: "        again = [(flat, self.comm.all_reduce(flat)) for flat, _ in self.under_way]\n"
            + WAIT.replace("self.under_way", "again")
        },
    ),
    Wrong(
        "forgets buckets that are never complete",
        "unused",
        {LEFT: "", WAIT: WAIT.replace("strict=True", "strict=False")},
    ),
    Wrong("starts buckets out of order", "unused", OUT_OF_ORDER),
    Wrong(
        "does not let the machine compute",
        "*",
        {KEEP: KEEP + "        comm.compute = lambda layer, phase: 1.0\n"},
    ),
    Wrong(
        "calls torch.distributed",
        "*=blocked",
        {KEEP: "        torch.distributed.all_reduce(torch.zeros(1))\n" + KEEP},
        is_quick=True,
    ),
]
