"""SIGTERM as a wish: finish the step, save, leave with the code that says "run me again".

The wish becomes law when all ranks have heard of it through the step's own reduction. It refuses to wait for ever: a
rank that is stuck in a collective cannot hear, so a thread ends the process after a grace period.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Interrupt:
    """Listens for SIGTERM while it is entered; to be entered on the main thread."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._wish, self._heard = threading.Event(), threading.Event()
        self._beat = 0.0

    @property
    def wished(self) -> bool:
        """True once the signal came to this rank."""
        return self._wish.is_set()

    def hear(self, *, leaving: bool) -> None:
        """Tell that the loop goes on, which starts the grace period anew, or that it leaves, which ends it."""
        self._beat = time.monotonic()
        if leaving:
            self._heard.set()

    def __enter__(self) -> Self:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        # The handler in C writes to the socket even while the main thread is inside a collective.
        self._old_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._old = signal.signal(signal.SIGTERM, lambda *_: None)
        self._thread = threading.Thread(target=self._listen, name="sigterm", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._old_fd)
        signal.signal(signal.SIGTERM, self._old)
        self._heard.set()
        self._write.close()
        self._thread.join()
        self._read.close()

    def _listen(self) -> None:
        while data := self._read.recv(64):
            if signal.SIGTERM in data:
                self._beat = time.monotonic()
                self._wish.set()
                while not self._heard.wait(0.2):
                    if time.monotonic() - self._beat > self._grace_s:
                        os._exit(128 + signal.SIGTERM)
