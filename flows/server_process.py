"""A Prefect server that ends with its parent: run by `flows.server`, never by hand.

`python -m flows.server_process PORT` serves Prefect's API on loopback until standard input closes,
which happens when the parent exits, however it dies.
"""

import os
import sys
import threading

import uvicorn
from prefect.server.api.server import create_app


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # returns when the parent's end of the pipe is closed
    os._exit(0)


def main() -> None:
    """Serves until the parent is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    app = create_app()
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
