"""Words that two processes share, compiled: loads that acquire, stores that release, a swap and a full fence."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

Call = Any  # numba knows their types only when it compiles
WORD = ir.IntType(64)
BYTES = 8


@intrinsic
def _load(context: Any, address: Any) -> Any:
    """The word at an address; what its writer wrote before is seen by what this process reads after."""
    del context, address

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del target, signature
        return builder.load_atomic(builder.inttoptr(values[0], WORD.as_pointer()), "acquire", BYTES)

    return types.int64(types.int64), code


@intrinsic
def _store(context: Any, address: Any, value: Any) -> Any:
    """Write a word at an address, behind all that this process has read and written before."""
    del context, address, value

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        builder.store_atomic(values[1], builder.inttoptr(values[0], WORD.as_pointer()), "release", BYTES)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def _swap(context: Any, address: Any, old: Any, new: Any) -> Any:
    """Write a word at an address if it is ``old``, and fence; False where it is another."""
    del context, address, old, new

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del target, signature
        word = builder.inttoptr(values[0], WORD.as_pointer())
        return builder.extract_value(builder.cmpxchg(word, values[1], values[2], "seq_cst"), 1)

    return types.boolean(types.int64, types.int64, types.int64), code


@intrinsic
def _fence(context: Any) -> Any:
    """All loads and stores before it are visible to other processes before any that follow it."""
    del context

    def code(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature, values
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(), code


load: Call = _load
store: Call = _store
swap: Call = _swap
fence: Call = _fence
