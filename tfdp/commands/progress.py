"""A line that shows that something goes on, where its end is not known."""

import contextlib
import sys
import threading
import time


@contextlib.contextmanager
def working(what: str):
    """Shows what is being done, and for how long, on standard error.

    On a terminal the seconds count up; anywhere else one line is written at the end.
    """
    begun, done = time.monotonic(), threading.Event()
    is_terminal = sys.stderr.isatty()

    def show():
        while not done.wait(0.5):
            print(
                f"\r{what} … {time.monotonic() - begun:.0f} s", end="", file=sys.stderr, flush=True
            )

    thread = threading.Thread(target=show, daemon=True)
    if is_terminal:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if is_terminal:
            thread.join()
        start = "\r" if is_terminal else ""
        print(f"{start}{what} … {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
