"""capsnet-serve whose inference threads can be killed from outside: SIGUSR1 ends one of them.

Nothing else can end a thread of a process: Python has no call for it but this one, of its C interface.
"""

import ctypes
import signal
import sys
import threading

from service.cli import main


def kill_one_inference_thread(*_: object) -> None:
    """Raise SystemExit in the youngest, as soon as it is back from the library that it is in or sleeps in."""
    for thread in reversed(threading.enumerate()):
        if thread.name.startswith("inference-"):
            killed = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(killed, ctypes.py_object(SystemExit))
            return


signal.signal(signal.SIGUSR1, kill_one_inference_thread)  # of workers and the engine process, too

if __name__ == "__main__":
    sys.exit(main())
