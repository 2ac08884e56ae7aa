"""When the record is sent: however one send ends, the next can begin."""

from __future__ import annotations

import time

import pytest

from autotune.tracking.pump import Pump


class Store:
    """``trouble``: raised by the first send."""

    def __init__(self, trouble: BaseException) -> None:
        self.trouble: BaseException | None = trouble
        self.sent = 0

    def send(self, *, wait: bool = False) -> int:
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble
        self.sent += 1
        return 1


def test_an_interrupted_sending_is_not_waited_for() -> None:
    """Ctrl-C twice while writing to a local file: the run ends now, and its end is recorded."""
    store = Store(KeyboardInterrupt())
    pump = Pump(store, background=False, failed=lambda error: None)
    with pytest.raises(KeyboardInterrupt):
        pump.poke()
    began = time.monotonic()
    assert pump.drain(timeout_s=20.0) and store.sent == 1
    assert time.monotonic() - began < 10.0
    pump.close()
