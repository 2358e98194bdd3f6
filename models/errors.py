"""The error family of the package: everything that `models` refuses, by name.

Each concrete error is also a standard error, so that a caller may catch either. A message names the
thing, the value found and what is allowed, and ends with a `hint:` line.
"""


class ModelsError(Exception):
    """Base of every error that `models` raises on purpose."""


class GroupError(ModelsError, ValueError):
    """A group estimator got groups that it cannot compare, for instance a group of one."""


class TrainingDataError(ModelsError, ValueError):
    """A training sequence breaks the contract between its tokens, mask and log-probs."""


class BatchError(ModelsError, ValueError):
    """Mini-batch, micro-batch and lane sizes do not fit together."""


class UnsupportedArchitectureError(ModelsError, ValueError):
    """A model configuration that the decoder does not implement."""


class PolicyFolderError(ModelsError, ValueError):
    """A folder that is no policy in Hugging Face form, or misses a file of one."""


class ContextError(ModelsError, ValueError):
    """A prompt and its reply that do not fit into the policy's context."""


class RequestError(ModelsError, ValueError):
    """A sampling request that no engine can serve, or two requests for one sequence."""


class NonFiniteError(ModelsError, ArithmeticError):
    """A policy whose scores are no numbers: nothing can be sampled from it."""


class StaleWeightsError(ModelsError, RuntimeError):
    """An engine that does not hold the weights that were asked for."""


class TemplateError(ModelsError, ValueError):
    """A chat template that cannot be used, or text that the tokenizer cannot encode safely."""
