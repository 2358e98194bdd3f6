"""Errors that a person meets at the command line before anything starts."""


class FlowsError(Exception):
    """Base of every error raised by `flows`."""


class ExperimentError(FlowsError, ValueError):
    """An experiment that cannot be composed: unknown key, bad value, wrong combination."""


class ClusterError(FlowsError, RuntimeError):
    """A Ray cluster that cannot run what is asked of it."""


class ServerError(FlowsError, RuntimeError):
    """A server that did not start or does not answer."""
