import os
import tempfile

from hypothesis import settings

# before anything of ours is imported: tests never touch the checkout's store, servers or mlruns
os.environ["STARPO_HOME"] = tempfile.mkdtemp(prefix="starpo-tests-")

from flows import defaults

defaults.apply()

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("fixed")
