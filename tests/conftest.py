import os
import tempfile

from hypothesis import settings

from flows import defaults

os.environ.setdefault("PREFECT_HOME", tempfile.mkdtemp(prefix="starpo-prefect-"))
os.environ["PREFECT_RESULTS_LOCAL_STORAGE_PATH"] = os.environ["PREFECT_HOME"] + "/results"
defaults.apply()

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("fixed")
