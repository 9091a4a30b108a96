"""Work for worker processes to do, and to fail at."""

import logging
import os
import signal
import sys
import time

from transduce.errors import DataError, TokenizerError


def doubler(delay):
    """Doubles a number, the odd ones late."""

    def double(number):
        time.sleep(delay * (number % 2))
        return number * 2

    return double


def teller():
    return lambda: (os.getpid(), "torch" in sys.modules)


def failer(way):
    def fail(number):
        if number < 3:
            return number
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "memory":
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            return len(bytearray(1 << 32))
        if way == "slow":
            time.sleep(0.2)
            raise DataError("the answer")
        if way == "told":
            raise TokenizerError("no such subword")
        logging.getLogger("transduce.labour").warning("this is %s", way)
        return number

    return fail


def sleeper():
    return time.sleep


def doubled():
    return lambda text: text + text
