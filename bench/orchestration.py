"""Times a training run from inside: the whole flow, and what its stages compute.

Work is what a stage's body does, less the writing of its shards; everything else is orchestration:
Prefect, MLflow, Parquet, hashing, the store. Prints one JSON line; `bench.pipeline` runs it.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from flows import defaults

defaults.apply()

from flows.experiment import parse_overrides  # noqa: E402 - the defaults come first
from flows.server import prefect_server  # noqa: E402


def main() -> None:
    """Runs and prints."""
    with prefect_server(defaults.HOME):
        import flows.starpo  # noqa: PLC0415 - needs the server
        from tasks import stage  # noqa: PLC0415

        spent = {"body": 0.0, "shards": 0.0}

        def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
            def measure(*arguments: Any, **named: Any) -> Any:
                start = time.perf_counter()
                try:
                    return work(*arguments, **named)
                finally:
                    spent[name] += time.perf_counter() - start

            measure.__module__ = work.__module__  # the code digest looks at it
            return measure

        stage.write_shard = timed("shards", stage.write_shard)
        from flows import train  # noqa: PLC0415

        for value in vars(train).values():
            if isinstance(value, stage.Stage):
                value.fn = timed("body", value.fn)
        start = time.perf_counter()
        flows.starpo.train(overrides=parse_overrides(sys.argv[1:]))
        whole_s = time.perf_counter() - start
    work_s = spent["body"] - spent["shards"]
    sys.stdout.write(json.dumps({"whole_s": whole_s, "work_s": work_s}) + "\n")


if __name__ == "__main__":
    main()
