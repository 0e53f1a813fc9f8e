"""Work of several threads at once, for tests of races."""

import concurrent.futures
import sys
import threading


def in_threads(work, count=3):
    """Run ``work()`` in threads at once, with as many switches between them as there can be; return the errors."""
    errors = []

    def run():
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return errors


def in_thread(work):
    """Return what ``work()`` returns in a thread of its own."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
