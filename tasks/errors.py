"""One family of errors for stages, the store and shards: what happened, the value, a hint."""


class TasksError(Exception):
    """Base of every error raised by `tasks`."""


class SettingsError(TasksError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class MissingObjectError(TasksError, FileNotFoundError):
    """A stored file or folder that a reference names is not there."""


class DamagedObjectError(TasksError, ValueError):
    """A stored file or folder whose bytes no longer match its digest."""


class RebuildError(TasksError, RuntimeError):
    """A stored file that cannot be made again, or comes out different."""


class StoreBusyError(TasksError, RuntimeError):
    """Another process is writing to this store."""


class StoreFullError(TasksError, OSError):
    """The disk that holds the store has no room left."""


class ShardError(TasksError, ValueError):
    """A Parquet file that is not a shard of the expected schema."""


class GateError(TasksError, ValueError):
    """An invariant of the learning data is broken: the update must not run."""


class LaneError(TasksError, RuntimeError):
    """A function failed in a worker process."""


class LaneLostError(LaneError, ConnectionError):
    """A worker process died, or a server that it depends on does not answer."""


class ReferenceFolderError(TasksError, ValueError):
    """A folder of reference numbers that cannot be checked."""


class SampleError(TasksError, ValueError):
    """A sample that an interval or an estimate cannot be computed from."""
