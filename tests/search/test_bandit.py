from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tuning_tables import CurveArm

from tilewright.search.task_scheduler.bandit import UNLIMITED, Bandit, Trials
from tilewright.search.task_scheduler.belief import EmceeSampler
from tilewright.search.task_scheduler.belief_pool import BeliefOptions, BeliefPool
from tilewright.search.task_scheduler.policies import (
    AnsorGradient,
    ArmView,
    Boltzmann,
    EpsilonGreedy,
    LinearInFlops,
    Policy,
    RoundRobin,
    Sequential,
    Thompson,
    Ucb,
    policies,
)
from tilewright.search.task_scheduler.simulation import SimulatedClock

SHORT = EmceeSampler(40, 20, 4)


def view(
    order: int,
    gain: float = 0.1,
    deviation: float = 0.01,
    pulls: int = 1,
    flops: float = 1.0,
    latencies: tuple[float, ...] = (2.0, 1.5, 1.0),
    share: float = 0.3,
    group: str = "g",
) -> ArmView:
    saved = np.array([gain - deviation, gain + deviation])
    return ArmView(
        str(order), group, order, pulls, latencies[-1], share, flops, latencies, gain, deviation, saved, np.array([0.5, 0.5])
    )


def chosen(policy: Policy, arms: list[ArmView], slot: int = 10, draws: int = 200) -> Counter[int]:
    rng = np.random.default_rng(0)
    return Counter(policy.choose(arms, slot, rng) for _ in range(draws))


def test_ucb_prefers_gain_then_doubt_and_does_not_depend_on_the_unit() -> None:
    assert set(chosen(Ucb(), [view(0, 0.1), view(1, 0.3)])) == {1}
    assert set(chosen(Ucb(2.0), [view(0, 0.1, 0.001), view(1, 0.1, 0.1)])) == {1}
    arms = [view(0, 0.10, 0.05, 9), view(1, 0.09, 0.05, 1)]
    tiny = [view(0, 1e-7, 5e-8, 9), view(1, 0.9e-7, 5e-8, 1)]
    assert set(chosen(Ucb(2.0), arms)) == set(chosen(Ucb(2.0), tiny)) == {1}


def test_epsilon_softmax_and_thompson_explore_a_little() -> None:
    arms = [view(0, 0.30, 0.01), view(1, 0.28, 0.05), view(2, 0.01, 0.001)]
    assert chosen(EpsilonGreedy(0.1), arms)[0] > 170 and len(chosen(EpsilonGreedy(0.1), arms)) == 3
    soft, thompson = chosen(Boltzmann(0.1), arms), chosen(Thompson(), arms)
    assert soft[0] > soft[1] > soft[2] and thompson[0] > 60 and thompson[1] > 60 and thompson[2] == 0


def test_baselines_follow_their_rules() -> None:
    arms = [view(0, pulls=3, flops=8.0), view(1, pulls=2, flops=1.0), view(2, pulls=2, flops=1.0)]
    assert set(chosen(RoundRobin(), arms)) == {1}
    assert set(chosen(Sequential(), arms[1:])) == {0}
    assert set(chosen(LinearInFlops(), arms)) == {0}
    assert set(chosen(policies()["random"], arms)) == {0, 1, 2}
    assert set(chosen(policies()["ucb_last_gain"], [view(0, latencies=(1.0, 1.0)), view(1, latencies=(1.0, 0.5))])) == {1}


def test_ansor_sees_the_recent_slope_and_what_similar_arms_reach() -> None:
    greedy = AnsorGradient(epsilon=0.0)
    flat, falling = view(0, latencies=(1.0, 1.0, 1.0, 1.0), pulls=3), view(1, latencies=(1.6, 1.4, 1.2, 1.0), pulls=3, group="h")
    assert set(chosen(greedy, [flat, falling])) == {1}
    slow, fast = view(0, pulls=4, flops=1.0), view(1, pulls=4, flops=9.0)
    assert set(chosen(greedy, [slow, fast])) == {0}
    assert set(chosen(greedy, [view(0, pulls=4), view(1, pulls=0)])) == {1}


def problem(policy: Policy, patience: int = 8, seed: int = 0) -> tuple[Bandit, SimulatedClock]:
    """One arm falls by a factor of four, one by a tenth, one not at all."""
    clock = SimulatedClock()
    x = np.arange(60)
    falls = {"much": 0.25 + 0.75 / (1 + x / 8), "little": 0.9 + 0.1 / (1 + x), "not": np.ones(60)}
    arms = [CurveArm(k, falls[k].tolist(), clock, ideal=0.2) for k in ("not", "little", "much")]
    pool = BeliefPool(BeliefOptions(segments=False), SHORT)
    return Bandit(arms, policy, 4.0, pool, patience, seed), clock


def latency_after(policy: Policy, slots: int, seed: int = 0) -> float:
    bandit, _ = problem(policy, seed=seed)
    for _ in range(slots):
        state = bandit.choose()
        if state is None:
            break
        bandit.run(state, 4.0)
    return bandit.latency


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["ucb", "epsilon", "softmax", "thompson"])
def test_policies_with_a_belief_find_the_arm_that_pays(name: str) -> None:
    slots = 8
    found = float(np.median([latency_after(policies()[name], slots, seed) for seed in range(2)]))
    assert found < latency_after(policies()["sequential"], slots)
    assert found <= latency_after(policies()["round_robin"], slots) * 1.01


def test_an_arm_that_no_longer_gains_rests_until_all_do() -> None:
    bandit, _ = problem(Sequential(), patience=8)
    order = []
    while (state := bandit.choose()) is not None:
        order.append(state.arm.key)
        bandit.run(state, 4.0)
    assert order[:2] == ["not", "not"] and order[2] == "little"
    assert all(s.arm.exhausted for s in bandit.states)
    assert order.count("not") == 15


def test_the_reward_is_a_share_of_the_model() -> None:
    for scale in (1.0, 1e-6):
        clock = SimulatedClock()
        arms = [CurveArm(str(i), [scale * s for s in (4.0, 3.0, 2.0, 1.5)], clock, ideal=scale * 0.5) for i in range(2)]
        bandit = Bandit(arms, Ucb(), 1.0, BeliefPool(sampler=SHORT))
        bandit.choose()
        gains = [e.gain for e in bandit.last.values()]
        assert sum(gains) < 1 and gains == pytest.approx([gains[0]] * 2)
    assert bandit.remaining() < 1


def test_an_arm_that_another_bettered_keeps_its_trials() -> None:
    clock = SimulatedClock()
    first, second = CurveArm("a", [1.0, 0.8, 0.7], clock), CurveArm("b", [1.0, 0.9, 0.8], clock)
    bandit = Bandit([first, second], RoundRobin(), 1.0, BeliefPool(sampler=SHORT))
    tune = first.tune

    def also(seconds: float, trials: Trials = UNLIMITED) -> list[tuple[int, float]]:
        second.curve = [0.6, 0.6, 0.6]
        return tune(seconds, trials)

    first.tune = also  # type: ignore[method-assign]
    bandit.run(bandit.states[0], 1.0)
    assert bandit.states[1].curve == [(1, 0.6)] and bandit.states[1].pulls == 0


def test_equal_seeds_give_equal_schedules() -> None:
    def schedule(seed: int) -> list[str]:
        bandit, _ = problem(policies()["softmax"], seed=seed)
        found = []
        for _ in range(5):
            state = bandit.choose()
            assert state is not None
            found.append(state.arm.key)
            bandit.run(state, 4.0)
        return found

    assert schedule(1) == schedule(1)
    assert len({tuple(schedule(s)) for s in range(2)}) > 1
