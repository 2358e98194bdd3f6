"""Update: one iteration's learning, from a policy and two shards to the next policy."""

from pydantic import BaseModel, ConfigDict, Field

from models.folder import weights_digest
from models.settings import LossSettings, OptimiserSettings, Sampling
from tasks.digest import derive_seed
from tasks.gates import check_advantages, check_trajectories
from tasks.shards import Kind, read_shard
from tasks.stage import Job, stage


class UpdateSettings(BaseModel):
    """The loss and the optimiser."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss: LossSettings = Field(default=LossSettings(), description="What is minimised.")
    optimiser: OptimiserSettings = Field(
        default=OptimiserSettings(), description="How it is minimised."
    )


class UpdateJobSettings(BaseModel):
    """What determines the next policy besides the inputs and the seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    update: UpdateSettings
    sampling: Sampling
    with_critic: bool
    iteration: int
    lanes: int


@stage("update", version=1)
def update(job: Job[UpdateJobSettings]) -> None:
    """Checks the invariants of the learning data, then takes the optimiser's steps."""
    from models.policy import load_parameters
    from models.trainer import load_state, save_state, update_policy
    from tasks.learning_rows import training_sequences

    settings, policy = job.settings, job.inputs["policy"]
    trajectories = read_shard(job.inputs["trajectories"], kind=Kind.TRAJECTORIES)
    advantages = read_shard(job.inputs["advantages"], kind=Kind.ADVANTAGES)
    check_trajectories(
        trajectories,
        weight_digest=weights_digest(policy),
        sampling=settings.sampling.model_dump(mode="json"),
    )
    check_advantages(trajectories, advantages)
    reference = None
    if "reference" in job.inputs:
        weights = load_parameters(job.inputs["reference"])
        reference = {name: value.numpy() for name, value in weights.items()}
    state = load_state(policy, settings=settings.update.optimiser, with_critic=settings.with_critic)
    job.metrics = update_policy(
        state,
        training_sequences(trajectories.table, advantages.table),
        loss=settings.update.loss,
        settings=settings.update.optimiser,
        temperature=settings.sampling.temperature,
        seed=derive_seed(job.seed, "update", settings.iteration),
        num_lanes=settings.lanes,
        run=job.lanes.map,
        reference=reference,
        loss_scale=advantages.metadata.get("loss_scale", 1.0),
    )
    save_state(state, previous=policy, folder=job.output("policy"))
