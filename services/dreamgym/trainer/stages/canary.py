"""The canary: the same training tasks in the dream and in the real engine, every few iterations.

Success in the dream that rises while real success does not is a policy that exploits the model. The canary compares the
two on the same tasks and stops the run when the gap is larger than allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dreamgym.core.episodes import Task
from dreamgym.core.errors import AdapterMissingError, UnavailableError
from dreamgym.core.jobs import TrainPolicy
from dreamgym.core.paired_outcomes import paired_outcomes
from dreamgym.inference.local import LocalEngine
from dreamgym.trainer.rollout import Attempt, World, play_all, seed_of
from dreamgym.trainer.stages.context import StageContext
from dreamgym.trainer.stages.evaluate import real_world


@dataclass(frozen=True)
class CanaryVerdict:
    """Dream and real success on the same tasks; `gap` is dream minus real with its paired 95 % interval."""

    iteration: int
    dream: float
    real: float
    gap: float
    low: float
    high: float
    n: int
    real_transitions: int
    exploited: bool

    @property
    def text(self) -> str:
        return (
            f"dream success {self.dream:.0%} but real {self.real:.0%} on the same {self.n} tasks "
            f"(gap {100 * self.gap:.0f} points [{100 * self.low:.0f}, {100 * self.high:.0f}])"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def fly_canary(
    context: StageContext, spec: TrainPolicy, engine: LocalEngine, world: World, tasks: Sequence[Task], iteration: int
) -> CanaryVerdict:
    """Play the canary's tasks in both worlds. It is exploited if the whole interval of the gap lies above the limit's
    lower end: the gap exceeds `canary_max_gap` and its interval excludes 0.
    """
    if not context.environment.adapter:
        raise AdapterMissingError(
            "A canary needs a real environment.", remedy="Set canary_every to 0, or give the environment an adapter."
        )
    start = (iteration // spec.canary_every - 1) * spec.canary_episodes
    chosen = [tasks[(start + i) % len(tasks)] for i in range(min(spec.canary_episodes, len(tasks)))]
    budget = spec.canary_episodes * spec.rollouts.max_steps
    reality = real_world(context, budget, record=False, budget_id=f"stage-{context.stage}-canary-{iteration}")
    reality = replace(reality, space=world.space)
    outcomes: dict[str, dict[str, float]] = {}
    transitions = 0
    rollouts = spec.rollouts.model_copy(update={"temperature": 0.4})
    for name, place in (("dream", replace(world)), ("real", reality)):
        attempts = [
            Attempt(
                task=task,
                episode_id=f"{context.session.job_id}-s{context.stage}-a{context.session.attempt}-c{iteration}-{name}-{i}",
                world_seed=0,
                sample_seed=seed_of(context.session.seed, iteration, task.id),
            )
            for i, task in enumerate(chosen)
        ]
        played = await play_all(attempts, engine, place, rollouts, context.check)
        outcomes[name] = {episode.task.id: float(episode.success) for episode in played if episode.counts}
        if name == "real":
            transitions = sum(len(episode.transitions) for episode in played)
    gap = paired_outcomes(outcomes["real"], outcomes["dream"])
    if gap is None:
        raise UnavailableError(
            f"No task of the canary of iteration {iteration} was played to its end in both worlds.",
            remedy="See the log for what failed; then retry the job.",
        )
    both = outcomes["real"].keys() & outcomes["dream"].keys()
    verdict = CanaryVerdict(
        iteration=iteration,
        dream=sum(outcomes["dream"][task] for task in both) / gap.n,
        real=sum(outcomes["real"][task] for task in both) / gap.n,
        gap=gap.value,
        low=gap.low,
        high=gap.high,
        n=gap.n,
        real_transitions=transitions,
        exploited=gap.value > spec.canary_max_gap and gap.low > 0,
    )
    context.metric("canary_dream", iteration, verdict.dream)
    context.metric("canary_real", iteration, verdict.real)
    context.session.event("canary", stage=context.stage, **verdict.as_dict())
    return verdict
