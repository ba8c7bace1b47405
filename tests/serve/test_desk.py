"""Questions that arrive together are searched together; nobody waits for ever, and nobody pays for others."""

import asyncio
import os
import signal
import time

import pandas as pd
import pytest
from serving import make_people

from counterfactual_training.errors import InputError
from counterfactual_training.serve import desk as desks
from counterfactual_training.serve.desk import Desk
from counterfactual_training.serve.metrics import Metrics
from counterfactual_training.serve.questions import Question
from counterfactual_training.serve.reading import RefusedError
from counterfactual_training.serve.served import Served
from counterfactual_training.serve.worker import TaskError, TooLongError, Worker


def question(options: int = 1, **rules) -> Question:
    return Question("main", options, None, True, rules)


@pytest.fixture(scope="module")
def people(served):
    return served.people[served.decided[0] == 0].head(12).reset_index(drop=True)


def run(served, work, **settings):
    """What a coroutine returns that is given a desk, and the metrics of the desk."""

    async def inside():
        metrics = Metrics()
        desk = Desk(served, metrics, settings.pop("num_workers", 1), settings.pop("most_waiting", 1000), **settings)
        await desk.start()
        try:
            return await work(desk), metrics
        finally:
            await desk.stop()

    return asyncio.run(inside())


def numbers(metrics: Metrics) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in metrics.text(0).splitlines())


def one(frame: pd.DataFrame, i: int) -> pd.DataFrame:
    return frame.iloc[[i]]


async def ask_all(desk, people, asked):
    questions = (desk.explain(asked, one(people, i), ["granted"], 60.0) for i in range(len(people)))
    return await asyncio.gather(*questions)


def test_questions_that_arrive_together_are_one_search_with_the_same_answers(served, people):
    together, metrics = run(served, lambda desk: ask_all(desk, people, question()))
    assert numbers(metrics)["ct_batches_total"] == "1" and numbers(metrics)["ct_batched_requests_total"] == "12"
    alone, metrics = run(served, lambda desk: ask_all(desk, people, question()), together=False)
    assert numbers(metrics)["ct_batches_total"] == "12"
    values = [[[plan["values"] for plan in answers[0]["plans"]] for answers, _, _ in way] for way in (together, alone)]
    assert values[0] == values[1] and all(values[0])
    assert [batch for _, _, batch in together] == [12] * 12


def test_other_rules_make_another_batch(served, people):
    async def work(desk):
        asked = [question(lock=["job"]) if i % 2 else question() for i in range(12)]
        return await asyncio.gather(*(desk.explain(q, one(people, i), ["granted"], 60.0) for i, q in enumerate(asked)))

    found, metrics = run(served, work)
    assert numbers(metrics)["ct_batches_total"] == "2" and {batch for _, _, batch in found} == {6}


def test_a_bad_row_costs_nobody_else_an_answer(served, people):
    bad = one(people, 0).assign(income=1e300)  # the model cannot compute with it

    async def work(desk):
        asked = [desk.explain(question(), one(people, i), ["granted"], 60.0) for i in range(3)]
        return await asyncio.gather(*asked, desk.explain(question(), bad, ["granted"], 60.0), return_exceptions=True)

    (*good, error), _ = run(served, work)
    assert isinstance(error, InputError) and "income" in str(error)
    assert all(answers[0]["plans"] for answers, _, _ in good)


def test_a_large_request_is_answered_row_by_row_in_order(served):
    frame, _ = make_people(50, seed=3)
    (answers, complete, _), _ = run(
        served, lambda d: d.explain(question(), frame, ["granted"] * 50, 60.0), num_workers=2
    )
    told = served.model.classifier.explain(frame, "granted")
    assert complete and [answer["row"] for answer in answers] == list(range(50))
    assert [answer["plans"][0]["values"] for answer in answers] == told.frame.astype(object).to_dict("records")


def test_a_hurried_client_does_not_hurry_others(served, people):
    async def work(desk):
        patient = [desk.explain(question(), one(people, i), ["granted"], 60.0) for i in range(3)]
        return await asyncio.gather(*patient, desk.explain(question(), one(people, 3), ["granted"], 0.5))

    found, _ = run(served, work)
    assert {batch for _, _, batch in found[:3]} == {3} and all(complete for _, complete, _ in found[:3])


def test_the_parts_of_a_large_request_leave_room_for_others(served, people):
    async def work(desk):
        large = asyncio.create_task(desk.explain(question(), pd.concat([people] * 4), ["granted"] * 48, 60.0))
        await asyncio.sleep(0.05)
        small = await desk.explain(question(), one(people, 0), ["granted"], 60.0)
        return small, large.done(), await large

    (small, was_done, large), metrics = run(served, work)
    assert small[0][0]["plans"] and not was_done and len(large[0]) == 48
    assert numbers(metrics)["ct_batches_total"] == "3"


def test_who_has_hung_up_is_not_searched_for(served, people):
    async def work(desk):
        busy = asyncio.create_task(desk.explain(question(3), people, ["granted"] * 12, 60.0))
        await asyncio.sleep(0.1)
        gone = asyncio.create_task(desk.explain(question(), one(people, 0), ["granted"], 60.0))
        await asyncio.sleep(0.05)
        gone.cancel()
        await busy
        return desk.waiting

    _, metrics = run(served, work)
    assert numbers(metrics)["ct_batches_total"] == "1"


def test_who_waits_too_long_is_told_so(served, people):
    async def work(desk):
        slow = asyncio.create_task(desk.explain(question(5), people, ["granted"] * 12, 60.0))
        await asyncio.sleep(0.1)
        late = await desk.explain(question(2), one(people, 0), ["granted"], 0.05)
        await slow
        return late

    (answers, complete, _), _ = run(served, work)
    assert not complete and answers[0]["searched"] is False and answers[0]["plans"] == []


def test_a_full_queue_refuses_politely(served, people):
    async def work(desk):
        with pytest.raises(RefusedError) as error:
            await desk.explain(question(), people, ["granted"] * 12, 60.0)
        return error.value

    error, _ = run(served, work, most_waiting=11)
    assert error.status == 503 and error.code == "busy"


# ---- processes -------------------------------------------------------------------------------------------------------


def sleeps(served: Served, seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


def dies(served: Served) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fails(served: Served) -> None:
    raise KeyError("a value of somebody's row")


def test_a_task_that_takes_too_long_is_ended_and_the_next_one_is_answered(served):
    worker = Worker(served)
    try:
        with pytest.raises(TooLongError, match="longer than"):
            worker.ask(sleeps, 60.0, seconds=0.2)
        assert worker.ask(sleeps, 0.0, seconds=30) == "awake" and worker.starts == 2
    finally:
        worker.stop()


def test_a_fault_names_its_type_and_nothing_of_the_data(served):
    worker = Worker(served)
    try:
        with pytest.raises(TaskError) as error:
            worker.ask(fails, seconds=30)
        assert str(error.value) == "KeyError" and worker.starts == 1
    finally:
        worker.stop()


def test_a_process_that_was_killed_is_replaced(served, people):
    async def work(desk):
        await desk.explain(question(), one(people, 0), ["granted"], 60.0)
        os.kill(desk._workers[0]._process.pid, signal.SIGKILL)
        return await ask_all(desk, people, question())

    found, metrics = run(served, work)
    # The batch that met the dead process is asked again, part by part.
    assert all(answers[0]["plans"] for answers, _, _ in found)
    assert numbers(metrics)["ct_worker_restarts_total"] == "1"


def test_a_search_that_does_not_end_is_given_up(served, people, monkeypatch):
    monkeypatch.setattr(desks, "explain", _endless)
    monkeypatch.setattr(desks, "GRACE", 0.2)
    (answers, complete, _), _ = run(served, lambda d: d.explain(question(), people, ["granted"] * 12, 0.2))
    assert not complete and not any(answer["searched"] for answer in answers)


def _endless(served, *arguments):
    time.sleep(60)
    return [], True


def test_one_audit_at_a_time(served):
    async def work(desk):
        first = asyncio.create_task(desk.audit(sleeps, 0.5, seconds=30))
        await asyncio.sleep(0.1)
        with pytest.raises(RefusedError) as error:
            await desk.audit(sleeps, 0.0, seconds=30)
        return await first, await desk.audit(sleeps, 0.0, seconds=30), error.value.status

    assert run(served, work)[0] == ("awake", "awake", 409)
