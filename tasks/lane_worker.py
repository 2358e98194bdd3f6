"""The main loop of a lane worker process: receives a function and a payload, sends the result.

Started by `tasks.lanes`; ends when its pipe closes, so it never outlives its parent for long.
"""

import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tasks.lanes import single_thread


def serve(connection: Connection) -> None:
    """Answers until the other side is gone."""
    single_thread()
    while True:
        try:
            function, payload = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        answer: tuple[str | None, bool, Any]
        try:
            answer = (None, False, function(payload))
        except Exception as error:
            answer = (traceback.format_exc(), isinstance(error, ConnectionError), None)
        try:
            connection.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    serve(Connection(int(sys.argv[1])))
