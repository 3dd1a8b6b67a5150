import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from trainer.interrupt import Interrupt

STUCK = """
import ctypes, os, signal, threading
from trainer.interrupt import Interrupt
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
with Interrupt(grace_s=0.5):
    libc.pthread_mutex_lock(mutex)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    libc.pthread_mutex_lock(mutex)  # as a collective whose peer is gone: C code that no signal interrupts
"""


def test_sigterm_becomes_a_wish_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt(grace_s=30) as interrupt:
        assert not interrupt.wished
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while not interrupt.wished and time.monotonic() < deadline:
            time.sleep(0.01)
        assert interrupt.wished
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_rank_that_is_stuck_in_a_collective_ends_after_the_grace_period():
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", STUCK], cwd=Path(__file__).parents[2], timeout=20, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - begin < 10


def test_steps_that_go_on_outlive_the_grace_period():
    with Interrupt(grace_s=0.5) as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(10):
            time.sleep(0.1)
            interrupt.hear(leaving=False)
        interrupt.hear(leaving=True)
        time.sleep(0.8)
    assert interrupt.wished
