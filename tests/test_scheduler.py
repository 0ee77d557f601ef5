# SPDX-License-Identifier: Apache-2.0
"""The scheduler and its policy: the whole table, the promises, no clock and no threads."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from calrt.serve import scheduler as scheduler_module
from calrt.serve.messages import (
    Accepted,
    Arrived,
    Cancelled,
    ChunkDone,
    Close,
    Denied,
    Emit,
    Ended,
    Expired,
    Finish,
    Granted,
    Illegal,
    Launch,
    Plan,
    Refuse,
    Reserve,
    Started,
    Stop,
    Token,
    Unloaded,
)
from calrt.serve.policy import IdleLane, Waiting, choose_lane, choose_next
from calrt.serve.scheduler import TRANSITIONS, Effect, Scheduler, State

PURE = [
    *("messages", "scheduler", "policy", "text", "prompts", "fields", "errors"),
    *("answers", "api_llama", "api_openai", "geometry", "flags"),
]
EVENTS = {
    Granted: Granted(1, 0),
    Denied: Denied(1, 0, 50),
    Started: Started(1, 1),
    ChunkDone: ChunkDone(1, 2, 1),
    Token: Token(1, 7, 1),
    Ended: Ended(1, Finish.LENGTH, 1),
    Cancelled: Cancelled(1),
    Expired: Expired(1),
    Unloaded: Unloaded(1),
}


def accepted(request: int, slot: int = -1, deadline: int | None = None) -> Accepted:
    return Accepted(request=request, tokens=(1, 2), max_tokens=3, slot=slot, deadline=deadline)


def in_state(state: State) -> Scheduler:
    """A scheduler whose only request, number 1, is in `state`."""
    scheduler = Scheduler(lanes=2, queue_limit=4)
    scheduler.step([Arrived(accepted(1))], 0)
    path = {
        State.QUEUED: [],
        State.RESERVED: [Granted(1, 0)],
        State.PREFILL: [Granted(1, 0), Started(1, 1)],
        State.DECODE: [Granted(1, 0), Started(1, 1), Token(1, 7, 1)],
        State.DRAINING: [Granted(1, 0), Started(1, 1), Cancelled(1)],
        State.ENDED: [Cancelled(1)],
    }[state]
    for event in path:
        scheduler.step([event], 0)
    assert scheduler.state(1) is state
    return scheduler


@pytest.mark.parametrize("event", EVENTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", list(State), ids=lambda state: state.value)
def test_every_state_meets_every_event(state: State, event: type) -> None:
    scheduler = in_state(state)
    before = scheduler.statistics()
    plan = scheduler.step([EVENTS[event]], 0)
    after = scheduler.statistics()
    row = TRANSITIONS.get((state, event))
    illegal = [action for action in plan.actions if isinstance(action, Illegal)]
    if state is State.ENDED:
        assert after.late == before.late + 1
        assert not illegal
    elif row is None:
        assert illegal == [Illegal(1, state.value, event.__name__)]
        assert scheduler.state(1) is state
        assert after.closed == before.closed
    else:
        assert scheduler.state(1) is row[0]
        assert not illegal
        assert after.closed - before.closed == (Effect.CLOSE in row[1])
    assert scheduler.broken_invariant() is None


def test_close_stands_exactly_where_an_owner_is_left() -> None:
    owned = {State.QUEUED, State.RESERVED, State.PREFILL, State.DECODE}
    for (state, _), (target, effects) in TRANSITIONS.items():
        assert (Effect.CLOSE in effects) == (state in owned and target not in owned)
        holds = {State.RESERVED, State.PREFILL, State.DECODE, State.DRAINING}
        assert (Effect.FREE in effects) == (state in holds and target is State.ENDED)


def test_a_request_runs_from_arrival_to_its_end() -> None:
    scheduler = Scheduler(1, 4)
    assert scheduler.step([Arrived(accepted(1))], 0).actions == (Reserve(1, 0, 5),)
    assert scheduler.step([Granted(1, 0)], 0).actions == (Launch(accepted(1), 0),)
    plan = scheduler.step([Started(1, 1), ChunkDone(1, 2, 2), Token(1, 7, 3)], 3)
    assert plan.actions == tuple(Emit(1, e) for e in (Started(1, 1), ChunkDone(1, 2, 2), Token(1, 7, 3)))
    assert scheduler.step([Ended(1, Finish.LENGTH, 4)], 4).actions == (Close(1, Finish.LENGTH, 4),)
    assert scheduler.state(1) is State.ENDED


def test_a_cancelled_request_keeps_its_lane_until_the_runner_lets_go() -> None:
    scheduler = in_state(State.DECODE)
    assert scheduler.step([Cancelled(1)], 0).actions == (Stop(1), Close(1, Finish.CANCELLED))
    plan = scheduler.step([Arrived(accepted(2, slot=0))], 0)
    assert plan.actions == ()
    assert scheduler.step([Ended(1, Finish.CANCELLED, 1)], 1).actions == (Reserve(2, 0, 5),)


def test_deadlines_end_requests_and_set_the_alarm() -> None:
    scheduler = Scheduler(1, 4)
    plan = scheduler.step([Arrived(accepted(1, deadline=100)), Arrived(accepted(2, deadline=50))], 0)
    assert plan.wake_at == 50
    scheduler.step([Granted(1, 0)], 0)
    plan = scheduler.step([], 50)
    assert plan == Plan((Close(2, Finish.DEADLINE),), 100)
    assert scheduler.step([], 100).actions == (Stop(1), Close(1, Finish.DEADLINE))
    assert scheduler.step([], 100).wake_at is None


def test_the_queue_has_a_bound() -> None:
    scheduler = Scheduler(1, 2)
    plans = [scheduler.step([Arrived(accepted(n))], 0) for n in range(1, 5)]
    assert plans[3].actions[0] == Refuse(4, 3, 2)
    numbers = scheduler.statistics()
    assert (numbers.accepted, numbers.refused, numbers.queued) == (3, 1, 3)


def test_a_denied_lane_is_left_alone_for_a_while() -> None:
    scheduler = Scheduler(1, 2)
    scheduler.step([Arrived(accepted(1))], 0)
    assert scheduler.step([Denied(1, 0, 20)], 0) == Plan((), 20)
    assert scheduler.step([], 20).actions == (Reserve(1, 0, 5),)


def test_slots_count_modulo_and_do_not_hold_up_others() -> None:
    scheduler = Scheduler(2, 4)
    assert scheduler.step([Arrived(accepted(1, slot=7))], 0).actions == (Reserve(1, 1, 5),)
    scheduler.step([Granted(1, 1)], 0)
    plan = scheduler.step([Arrived(accepted(2, slot=1)), Arrived(accepted(3))], 0)
    assert plan.actions == (Reserve(3, 0, 5),)


def test_policy_prefers_the_lane_idle_longest_then_the_highest() -> None:
    assert choose_lane(-1, [IdleLane(0, 0), IdleLane(1, 0)]) == 1
    assert choose_lane(-1, [IdleLane(0, 3), IdleLane(1, 5)]) == 0
    assert choose_lane(1, [IdleLane(0, 0)]) is None
    assert choose_next([Waiting(1, 1), Waiting(2, -1)], [IdleLane(0, 0)]) == (2, 0)
    assert choose_next([Waiting(1, -1)], []) is None


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events_closes_each_request_once(seed: int) -> None:
    """A random runner, random cancels: one Close for each accepted request, no lane lost, same again."""

    def run() -> list[object]:
        rng = random.Random(seed)
        scheduler = Scheduler(3, 5)
        now, number, running, trace = 0, 0, set(), []
        pending: list[object] = []
        for round_ in range(400):
            now += rng.randrange(5)
            if round_ < 300 and rng.random() < 0.5:
                number += 1
                deadline = now + rng.randrange(1, 60) if rng.random() < 0.5 else None
                pending.append(Arrived(accepted(number, rng.randrange(-1, 3), deadline)))
            if number and rng.random() < 0.2:
                pending.append(Cancelled(rng.randrange(1, number + 1)))
            for request in sorted(running):
                if scheduler.state(request) is State.RESERVED:
                    pending.append(Started(request, now))
                elif rng.random() < 0.3:
                    pending.append(Ended(request, Finish.LENGTH, now))
                    running.discard(request)
                else:
                    pending.append(Token(request, 5, now))
            while True:
                plan = scheduler.step(pending, now)  # type: ignore[arg-type]
                trace += plan.actions
                pending = []
                for action in plan.actions:
                    assert not isinstance(action, Illegal)
                    if isinstance(action, Reserve):
                        denied = rng.random() < 0.1
                        answer = Denied(action.request, action.lane, now + 3) if denied else None
                        pending.append(answer or Granted(action.request, action.lane))
                    elif isinstance(action, Launch):
                        running.add(action.accepted.request)
                if not pending:
                    break
            assert scheduler.broken_invariant() is None
        scheduler.step([Unloaded(request) for request in scheduler.live()], now)
        closes = [action.request for action in trace if isinstance(action, Close)]
        assert len(closes) == len(set(closes))
        numbers = scheduler.statistics()
        assert numbers.accepted == numbers.closed
        assert numbers.accepted + numbers.refused == number
        return trace

    assert run() == run()


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_nothing_that_could_wait(name: str) -> None:
    forbidden = {"asyncio", "time", "threading", "socket", "random", "secrets", "os", "starlette", "anyio"}
    forbidden |= {"uvicorn", "logging", "subprocess", "select", "queue", "concurrent"}
    source = Path(scheduler_module.__file__).with_name(f"{name}.py").read_text()
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            assert node.level == 0 or (node.module or "") in {*PURE, "chat"}
        assert not {each.split(".")[0] for each in names} & forbidden


def test_no_bare_task_is_created_in_the_serving_layer() -> None:
    for path in Path(scheduler_module.__file__).parent.glob("*.py"):
        assert "create_task(" not in path.read_text(), path.name
        assert "ensure_future" not in path.read_text(), path.name
