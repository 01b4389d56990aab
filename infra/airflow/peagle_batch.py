"""An Airflow DAG: an endpoint that exists only while it answers a batch of prompts.

The tasks are plain functions of ``peagle``: they run in a notebook and in tests as well. Between
tasks only names and texts pass, so each task may run on another worker. ``deploy`` continues or
changes nothing when Airflow repeats it, and the endpoint's own end time removes it even if no
worker is left. Needs the toolkit's wheel installed on the workers, and credentials there.
"""

from __future__ import annotations

from importlib.util import find_spec

import peagle

PAIR = "gpt-oss-20b"
PROMPTS = ["What is a draft head?", "Name three uses of speculative decoding."]
MOST_USD_PER_HOUR = 5.0


def deploy(pair: str = PAIR, *, sandbox: bool = False) -> str:
    """Deploy the pair for at most two hours, and prove its drafts; returns the endpoint's name.

    Raises ValueError for a plan that costs more than ``MOST_USD_PER_HOUR``, and what
    ``Session.deploy`` raises: NotProved ends the run, and nothing is answered without drafts.
    """
    session = peagle.Session(sandbox=sandbox)
    plan = session.plan(pair, concurrency=len(PROMPTS), ttl=2 * 3600)
    price = plan.price_per_hour_usd
    if price is None or price > MOST_USD_PER_HOUR:
        raise ValueError(f"{plan!r} costs more than ${MOST_USD_PER_HOUR} per hour")
    return session.deploy(plan, say=print).name


def answer(name: str, prompts: list[str], *, sandbox: bool = False) -> list[str]:
    """The endpoint's answers, in the order of the prompts."""
    session = peagle.Session(sandbox=sandbox)
    return [session.invoke(name, prompt).text for prompt in prompts]


def destroy(name: str, *, sandbox: bool = False) -> int:
    """Remove the endpoint and what belongs to it; returns how many resources were removed."""
    return len(peagle.Session(sandbox=sandbox).destroy(name, missing_ok=True))


if find_spec("airflow"):
    from airflow.sdk import dag, task

    @dag(schedule=None, catchup=False, tags=["peagle"])
    def peagle_batch() -> None:
        """Deploy, answer, and remove the endpoint whatever happens."""
        name = task(retries=2)(deploy)()
        answers = task(answer)(name, PROMPTS)
        removed = task(trigger_rule="all_done")(destroy)(name)
        answers >> removed

    peagle_batch()
