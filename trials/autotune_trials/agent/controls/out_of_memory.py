"""Whether an error of the job means that memory ran out."""

from __future__ import annotations


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means out of memory, on the device or the host."""
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text
        or "_alloc_failed" in text  # cuBLAS
        or "_allocation_failed" in text  # cuDNN 9
        or "can't allocate memory" in text
        or "cannot allocate memory" in text
    )
