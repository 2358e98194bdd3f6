"""Defaults of the process environment: no telemetry, nothing fetched at run time, quiet libraries.

Applied by the command line, the services and the tests before anything heavy is imported; a value
that the user has set is kept.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("STARPO_HOME", ROOT)).absolute()
"""Holds `.starpo` (store, servers' state, logs) and `mlruns`: the checkout, or `STARPO_HOME`."""
STORE = HOME / ".starpo" / "store"
"""The store, where no other one is asked for."""

PLACES = {
    "MLFLOW_TRACKING_URI": f"sqlite:///{HOME / 'mlruns' / 'mlflow.db'}",
    "PREFECT_HOME": str(HOME / ".starpo" / "prefect"),
    "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(HOME / ".starpo" / "prefect" / "results"),
}
"""Where the home holds what: a command for another home must not inherit them."""

DEFAULTS = {
    # no telemetry
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # nothing is fetched at run time
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # one thread a process: work is spread over processes (tasks.lanes)
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # quiet terminals
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # its logs are in its page
    "TRANSFORMERS_VERBOSITY": "error",
    # quiet servers
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # an own Prefect home and results
    **PLACES,
}


def apply() -> None:
    """Sets what the user has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
