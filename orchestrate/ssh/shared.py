"""Shares one opened thing among all who need it at once: the first opens it, the last closes it. Retries nothing."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Slot(Generic[T]):
    users: int = 0
    opening: threading.Lock = field(default_factory=threading.Lock)
    value: T | None = None
    error: Exception | None = None


class Shared(Generic[T]):
    """Things by key. `alive` says whether one may still be given out; `close` ends it when nobody holds it."""

    def __init__(self, *, alive: Callable[[T], bool], close: Callable[[T], None]) -> None:
        self._alive = alive
        self._close = close
        self._lock = threading.Lock()
        self._slots: dict[Hashable, _Slot[T]] = {}

    def take(self, key: Hashable, opener: Callable[[], T], *, timeout_s: float) -> tuple[T, Callable[[], None]]:
        """Return the thing and the function that gives it back (once; calling it again does nothing).

        Whoever waits while another opens shares the outcome, an error included. Raise TimeoutError after `timeout_s`
        seconds of waiting.
        """
        with self._lock:
            slot = self._slots.get(key)
            if slot is None or (slot.value is not None and not self._alive(slot.value)):
                slot = self._slots[key] = _Slot()
            slot.users += 1
        try:
            return self._opened(slot, opener, timeout_s), self._giver(key, slot)
        except BaseException:
            self._give(key, slot)
            raise

    def _opened(self, slot: _Slot[T], opener: Callable[[], T], timeout_s: float) -> T:
        if not slot.opening.acquire(timeout=timeout_s):
            raise TimeoutError("another connection is still being opened")
        try:
            if slot.error is not None:
                raise slot.error
            if slot.value is None:
                try:
                    slot.value = opener()
                except Exception as error:
                    slot.error = error
                    raise
            return slot.value
        finally:
            slot.opening.release()

    def _giver(self, key: Hashable, slot: _Slot[T]) -> Callable[[], None]:
        given = threading.Lock()

        def give() -> None:
            if given.acquire(blocking=False):
                self._give(key, slot)

        return give

    def _give(self, key: Hashable, slot: _Slot[T]) -> None:
        with self._lock:
            slot.users -= 1
            last = slot.users == 0
            if (last or slot.error is not None) and self._slots.get(key) is slot:
                del self._slots[key]
        if last and slot.value is not None:
            self._close(slot.value)
