"""Registration with Gymnasium under `starpo/`; an environment that ignores its seed is refused."""

from functools import cache

import gymnasium

from envs.bandit import Bandit
from envs.base import Split, TextEnvironment
from envs.checker import check_seeding
from envs.entry_points import is_entry_point, load_entry_point
from envs.errors import TagSettingsError
from envs.frozen_lake import FrozenLake
from envs.sokoban import Sokoban

BANDIT = "starpo/Bandit-v0"
SOKOBAN = "starpo/Sokoban-v0"
FROZEN_LAKE = "starpo/FrozenLake-v0"


def register_environment(
    environment_id: str, *, environment: type[TextEnvironment], nondeterministic: bool = False
) -> None:
    """Makes an environment known to Gymnasium and to the tags.

    Args:
        environment_id: For instance `starpo/Sokoban-v0`.
        environment: The class; constructed as `environment(settings, split=split)`.
        nondeterministic: Whether equal seeds may give different episodes.

    Raises:
        ContractError: `reset(seed=...)` does not determine the instance.
    """
    if environment_id in gymnasium.registry:
        return
    check_seeding(lambda: environment(split=Split.TRAIN))
    gymnasium.register(environment_id, entry_point=environment, nondeterministic=nondeterministic)


@cache
def users_environment(path: str) -> type[TextEnvironment]:
    """Returns a user's class by import path, once its seeding was checked.

    Raises:
        TagSettingsError: The path names something else.
        ContractError: `reset(seed=...)` does not determine the instance.
    """
    found = load_entry_point(path)
    if not (isinstance(found, type) and issubclass(found, TextEnvironment)):
        raise TagSettingsError(
            f"`{path}` is a {type(found).__name__}\nhint: name a `TextEnvironment` class"
        )
    check_seeding(lambda: found(split=Split.TRAIN))
    return found


def environment_class(environment_id: str) -> type[TextEnvironment]:
    """Returns the class registered under an id, or a user's by import path.

    Raises:
        TagSettingsError: The id is not registered, or names no text environment.
        EntryPointError: The import path names nothing.
    """
    if is_entry_point(environment_id):
        return users_environment(environment_id)
    spec = gymnasium.registry.get(environment_id)
    entry_point = spec.entry_point if spec is not None else None
    if isinstance(entry_point, type) and issubclass(entry_point, TextEnvironment):
        return entry_point
    known = sorted(
        name
        for name, known_spec in gymnasium.registry.items()
        if isinstance(known_spec.entry_point, type)
        and issubclass(known_spec.entry_point, TextEnvironment)
    )
    raise TagSettingsError(
        f"`{environment_id}` is no registered text environment\n"
        f"hint: register it with `register_environment`; known are {', '.join(known)}"
    )


def register_all() -> None:
    """Registers the environments of this package; doing it twice changes nothing."""
    register_environment(BANDIT, environment=Bandit)
    register_environment(SOKOBAN, environment=Sokoban)
    register_environment(FROZEN_LAKE, environment=FrozenLake)
