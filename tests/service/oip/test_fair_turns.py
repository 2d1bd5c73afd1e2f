import asyncio
from contextlib import AsyncExitStack

import pytest

from service.oip.fair_turns import FairTurns

NEVER_S = 60.0
BUSY, SAME_HOST, OTHER_HOST = "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2", "ipv4:10.0.0.2:1"


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def order_of(waiting: list[str], holding: list[str]) -> list[str]:
    """In which order clients that wait get a turn, when those that have all turns give them back."""

    async def scenario() -> list[str]:
        turns, served = FairTurns(len(holding)), []

        async def wait(client: str) -> None:
            async with turns.turn(client, NEVER_S):
                served.append(client)
                await settle()

        async with AsyncExitStack() as held, asyncio.TaskGroup() as tasks:
            for client in holding:
                await held.enter_async_context(turns.turn(client, NEVER_S))
            for client in waiting:
                tasks.create_task(wait(client))
                await settle()
            assert turns.waiting == len(waiting)
            await held.aclose()
        assert turns.waiting == 0
        return served

    return asyncio.run(scenario())


def test_the_next_turn_goes_to_the_host_that_holds_the_fewest():
    assert order_of([BUSY, BUSY, OTHER_HOST], holding=[BUSY, BUSY, BUSY])[0] == OTHER_HOST


def test_a_new_connection_of_a_busy_host_does_not_come_before_another_host():
    assert order_of([SAME_HOST, OTHER_HOST], holding=[BUSY, BUSY, BUSY])[0] == OTHER_HOST


def test_of_one_host_it_goes_to_the_connection_that_holds_the_fewest():
    assert order_of([BUSY, BUSY, SAME_HOST], holding=[BUSY, BUSY, BUSY])[0] == SAME_HOST


def test_else_who_comes_first_is_served_first():
    hosts = [f"ipv4:10.0.1.{host}:1" for host in range(5)]
    assert order_of(hosts, holding=[OTHER_HOST]) == hosts


def test_a_turn_that_is_not_free_in_time_is_given_up():
    async def scenario() -> None:
        turns = FairTurns(1)
        async with turns.turn(BUSY, NEVER_S):
            with pytest.raises(TimeoutError):
                async with turns.turn(OTHER_HOST, 0.01):
                    pass
            assert turns.waiting == 0
        async with turns.turn(OTHER_HOST, 0.01):
            pass

    asyncio.run(scenario())


async def get_no_turn(turns: FairTurns) -> None:
    """Wait for one, and leave before it comes."""
    async with turns.turn(OTHER_HOST, NEVER_S):
        pytest.fail("it has left")


@pytest.mark.parametrize("has_got_it", [False, True])
def test_who_leaves_while_waiting_takes_no_turn_along(has_got_it):
    async def scenario() -> None:
        turns, leaver = FairTurns(1), None
        async with turns.turn(BUSY, NEVER_S):
            leaver = asyncio.create_task(get_no_turn(turns))
            await settle()
            if not has_got_it:
                leaver.cancel()
                await settle()
        leaver.cancel()  # if it has a turn, it does not know yet
        await settle()
        assert leaver.cancelled()
        async with turns.turn(BUSY, 0.01):
            pass

    asyncio.run(scenario())


def test_a_turn_that_is_given_back_just_when_the_next_one_leaves_is_not_lost():
    async def scenario() -> None:
        turns = FairTurns(1)
        async with turns.turn(BUSY, NEVER_S):
            leaver = asyncio.create_task(get_no_turn(turns))
            await settle()
            leaver.cancel()  # it has not run yet when the turn is given back
        async with turns.turn(BUSY, 0.01):
            await settle()
        assert leaver.cancelled()
        assert turns.waiting == 0
        async with turns.turn(BUSY, 0.01):
            pass

    asyncio.run(scenario())
