"""How runs are operated: time-outs and retries. Changes no result, so it is part of no digest."""

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.errors import ExperimentError
from flows.experiment import read_params


class OperationSettings(BaseModel):
    """The section `operation` of params.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage_timeout_s: float = Field(gt=0, description="Longest time that a stage may take.")
    retries: int = Field(
        ge=0, description="Times that an arm is tried again after a failed server or worker."
    )
    retry_after_s: float = Field(
        gt=0, description="Wait before the first retry; doubles for each further one."
    )


def read_operation() -> OperationSettings:
    """The settings of params.yaml.

    Raises:
        ExperimentError: One is missing, unknown or out of range.
    """
    try:
        return OperationSettings.model_validate(read_params().get("operation", {}))
    except ValidationError as error:
        text = "; ".join(
            f"`{'.'.join(map(str, item['loc']))}`: {item['msg']}" for item in error.errors()
        )
        raise ExperimentError(f"section `operation` of params.yaml: {text}") from error
