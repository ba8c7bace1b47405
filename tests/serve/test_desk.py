"""Questions that arrive together are searched together; nobody waits for ever, and nobody pays for
others.

Workers do what a test says, when it says so; see ``test_worker.py`` for those with processes.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
from serving import Held, Here

from counterfactual_serve.desk import BATCH, Desk
from counterfactual_serve.metrics import Metrics
from counterfactual_serve.questions import Limits, PageQuestion
from counterfactual_serve.reading import RefusedError
from counterfactual_serve.worker import DiedError, TaskError, TooLongError
from counterfactual_training.errors import InputError

# Of the clock, for clients: so much that none of it matters.
SECONDS = 3600.0


def question(options: int = 1, **rules) -> PageQuestion:
    return PageQuestion("main", options, None, "granted", rules)


def rows(*incomes: float) -> pd.DataFrame:
    return pd.DataFrame({"income": list(incomes)})


def run(work, *workers, auditor=None, **settings):
    """What a coroutine returns that is given a desk, and the numbers of the desk."""

    async def inside():
        metrics = Metrics()
        desk = Desk(
            workers, auditor or Held(), metrics, Limits(**{"seconds": SECONDS, **settings})
        )
        await desk.start()
        try:
            result = await work(desk)
        finally:
            await desk.stop()
        return result, dict(line.rsplit(" ", 1) for line in metrics.text(0).splitlines())

    # In a thread: a browser that other tests share keeps a loop running in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, inside()).result()


def asks(desk, frame: pd.DataFrame, asked: PageQuestion | None = None) -> asyncio.Task:
    """A client who waits for an answer; it is in the queue when others next have their turn."""
    return asyncio.create_task(desk.explain(asked or question(), frame))


async def next_call(worker: Held):
    return await asyncio.to_thread(worker.next_call)


async def next_calls(worker: Held, number: int) -> list[list[float]]:
    """Answer the next searches, and return the incomes in each."""
    seen = []
    for _ in range(number):
        call = await next_call(worker)
        seen.append(call.frame["income"].tolist())
        call.answer()
    return seen


def incomes(result) -> list[float]:
    answers, _ = result
    assert [answer["row"] for answer in answers] == list(range(len(answers)))
    return [answer["income"] for answer in answers]


# ---- batches -------------------------------------------------------------------------------------


def test_questions_that_wait_are_one_search():
    worker = Held()

    async def work(desk):
        first = asks(desk, rows(1))
        call = await next_call(worker)
        others = [asks(desk, rows(number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)  # they are in the queue now
        call.answer()
        seen = await next_calls(worker, 1)
        return seen, await asyncio.gather(first, *others)

    (seen, results), numbers = run(work, worker)
    assert seen == [[2, 3, 4]] and [incomes(result) for result in results] == [
        [1],
        [2],
        [3],
        [4],
    ]
    assert numbers["ct_batches_total"] == "2" and numbers["ct_batched_rows_total"] == "4"


def test_a_batch_has_the_answers_that_each_question_would_have_alone(served):
    people = served.people[served.decided[0] == 0].head(3).reset_index(drop=True)

    async def alone(desk):
        return [await asks(desk, people.iloc[[i]]) for i in range(3)]

    async def together(desk):
        return [await asks(desk, people)]

    ways = [
        [answer for answers, _ in run(work, Here(served))[0] for answer in answers]
        for work in (alone, together)
    ]
    plans = [[answer["plans"][0]["values"] for answer in way] for way in ways]
    assert plans[0] == plans[1] and len(plans[0]) == 3


def test_other_rules_make_another_batch():
    worker = Held()

    async def work(desk):
        for number in range(4):
            asks(desk, rows(number), question(lock=["job"]) if number % 2 else question())
        await asyncio.sleep(0)  # all are in the queue now, and the worker has not looked yet
        return await next_calls(worker, 1)

    assert run(work, worker)[0] == [[0, 2]]


def test_a_large_request_is_answered_in_order_and_leaves_room_for_others():
    worker = Held()

    async def work(desk):
        large = asks(desk, rows(*range(BATCH + 8)))
        first = await next_call(worker)
        small = asks(desk, rows(99), question(options=2))
        await asyncio.sleep(0)  # it is in the queue now, before the rest of the large one
        first.answer()
        seen = await next_calls(worker, 2)
        return seen, await small, await large

    (seen, small, large), _ = run(work, worker)
    assert seen[0] == [99] and len(seen[1]) == 8
    assert incomes(small) == [99] and incomes(large) == list(range(BATCH + 8))


def test_a_full_queue_refuses_politely():
    async def work(desk):
        with pytest.raises(RefusedError) as error:
            await asks(desk, rows(*range(12)))
        return error.value

    error, _ = run(work, Held(), queue=11)
    assert error.status == 503 and error.code == "busy"


# ---- who has gone --------------------------------------------------------------------------------


def test_a_batch_goes_on_without_those_who_have_gone():
    worker = Held()

    async def work(desk):
        first = asks(desk, rows(0))
        call = await next_call(worker)
        gone = asks(desk, rows(1))
        patient = asks(desk, rows(2))
        await asyncio.sleep(0)
        call.answer()
        call = await next_call(worker)
        gone.cancel()
        await asyncio.wait([gone])
        call.answer()
        await first
        return call.frame["income"].tolist(), await patient

    (seen, result), _ = run(work, worker)
    assert seen == [1, 2] and incomes(result) == [2]


def test_who_has_hung_up_leaves_the_queue():
    worker = Held()

    async def work(desk):
        first = asks(desk, rows(1))
        search = await next_call(worker)
        gone, patient = asks(desk, rows(2, 3)), asks(desk, rows(4))
        await asyncio.sleep(0)
        before = desk.waiting
        gone.cancel()
        await asyncio.wait([gone])
        after = desk.waiting
        search.answer()
        seen = await next_calls(worker, 1)
        await asyncio.gather(first, patient)
        return before, after, seen

    assert run(work, worker)[0] == (3, 1, [[4]])


# ---- what goes wrong -----------------------------------------------------------------------------


def test_a_bad_row_costs_nobody_else_an_answer():
    worker = Held()

    async def work(desk):
        first = asks(desk, rows(0))
        call = await next_call(worker)
        clients = [asks(desk, rows(number)) for number in (1, 2)]
        await asyncio.sleep(0)
        call.answer()
        (await next_call(worker)).answer(InputError("income is too large."))
        # Now one by one.
        (await next_call(worker)).answer()
        (await next_call(worker)).answer(InputError("income is too large."))
        await first
        return await asyncio.gather(*clients, return_exceptions=True)

    (good, error), _ = run(work, worker)
    assert incomes(good) == [1] and isinstance(error, InputError) and "income" in str(error)


@pytest.mark.parametrize("batch", [1, 2])
def test_who_waits_too_long_is_told_to_come_back(batch):
    async def work(desk):
        clients = [asks(desk, rows(number)) for number in range(batch)]
        return await asyncio.gather(*clients, return_exceptions=True)

    for error in run(work, Held(), seconds=0.0)[0]:
        assert isinstance(error, RefusedError) and error.status == 503 and error.code == "busy"


def test_a_search_that_does_not_end_is_given_up():
    worker = Held()

    async def work(desk):
        client = asks(desk, rows(1))
        (await next_call(worker)).answer(TooLongError())
        with pytest.raises(RefusedError) as error:
            await client
        return error.value

    error, _ = run(work, worker)
    assert error.status == 503 and error.code == "too_long"


@pytest.mark.parametrize("fault", [TaskError("KeyError"), DiedError("KeyError")])
def test_a_fault_is_told_without_what_caused_it(fault):
    worker = Held()

    async def work(desk):
        client = asks(desk, rows(1))
        (await next_call(worker)).answer(fault)
        with pytest.raises(RefusedError) as error:
            await client
        return error.value

    error, numbers = run(work, worker)
    assert (
        error.status == 500
        and "KeyError" not in str(error)
        and numbers["ct_failed_searches_total"] == "1"
    )


# ---- audits --------------------------------------------------------------------------------------


def audits(desk, **settings) -> asyncio.Task:
    return asyncio.create_task(desk.audit(print, "an argument", seconds=SECONDS, **settings))


def test_one_audit_at_a_time():
    auditor = Held()

    async def work(desk):
        first = audits(desk)
        call = await next_call(auditor)
        with pytest.raises(RefusedError) as error:
            await audits(desk)
        waiting = audits(desk, wait=True)
        call.answer("done")
        (await next_call(auditor)).answer("done, too")
        return error.value.status, await first, await waiting

    assert run(work, Held(), auditor=auditor)[0] == (409, "done", "done, too")


def test_an_audit_ends_with_its_client():
    auditor = Held()

    async def work(desk):
        gone = audits(desk)
        call = await next_call(auditor)
        gone.cancel()
        await asyncio.wait([gone])
        ended = call.gone.is_set()
        again = audits(desk)
        (await next_call(auditor)).answer("done")
        return ended, await again

    assert run(work, Held(), auditor=auditor)[0] == (True, "done")


def test_audits_are_given_up_when_the_server_is_told_to_stop():
    auditor = Held()

    async def work(desk):
        running, waiting = audits(desk), audits(desk, wait=True)
        await next_call(auditor)
        desk.stop_soon()
        return await asyncio.gather(running, waiting, return_exceptions=True)

    for error in run(work, Held(), auditor=auditor)[0]:
        assert (
            isinstance(error, RefusedError) and error.code == "stopping" and error.status == 503
        )


def test_an_audit_that_takes_too_long_is_told():
    auditor = Held()

    async def work(desk):
        client = audits(desk)
        (await next_call(auditor)).answer(TooLongError())
        with pytest.raises(RefusedError, match="fewer people"):
            await client

    run(work, Held(), auditor=auditor)
