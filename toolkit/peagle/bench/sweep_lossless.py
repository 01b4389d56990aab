"""The lossless check of a sweep: greedy answers of each engine, compared with the target's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from peagle.bench.lossless import LosslessResult, compare_transcripts
from peagle.bench.measure import BenchTarget
from peagle.bench.models import DEFAULT_MAX_TOKENS, NO_SPECULATION, BenchSetting, utc_now
from peagle.bench.openai_server import RefusedPrompt
from peagle.bench.prompts import PromptSet, parse_prompts, read_prompts
from peagle.bench.transcripts import Transcript, TranscriptProgress, transcripts
from peagle.catalog.schema import Catalog
from peagle.deploy.proving.request import DEFAULT_PROMPTS, find_pair_of_tag
from peagle.render.requests import tag_value
from peagle.speed.models import WORKLOADS

Opened = Callable[[BenchSetting], AbstractContextManager[object]]

CATALOGUE = "the catalogue's prompts"


class SweepLossless:
    """Collects the answers of each setting to ``prompts`` while its engine runs.

    Settings with an imposed acceptance are left out: their answers are not the target's.
    """

    def __init__(
        self,
        prompts: PromptSet,
        progress: TranscriptProgress = lambda server, done, count: None,
    ) -> None:
        self._prompts, self._progress = prompts, progress
        self._started = utc_now()
        self._answers: dict[BenchSetting, list[Transcript | RefusedPrompt]] = {}

    def ask(self, setting: BenchSetting, target: BenchTarget) -> None:
        """Ask the engine of this setting, which has just started. Raises what the server raises,
        and Unsupported where it returns no tokens."""
        if setting.imposed_rates or setting in self._answers:
            return
        is_alone = not setting.k
        answers = transcripts(
            self._prompts, target.server, setting.text, DEFAULT_MAX_TOKENS, is_alone, self._progress
        )
        self._answers[NO_SPECULATION if is_alone else setting] = list(answers)

    def complete(self, settings: Sequence[BenchSetting], opened: Opened) -> None:
        """Start the engines of these settings, and of the target alone, that have not been asked:
        their rows were measured earlier, or the sweep has no such setting."""
        asked = [one for one in settings if one.k and not one.imposed_rates]
        for setting in (*asked, *([NO_SPECULATION] if asked else [])):
            if setting not in self._answers:
                with opened(setting):  # which asks it
                    pass

    @property
    def results(self) -> tuple[LosslessResult, ...]:
        """The comparison of each setting with the target alone."""
        alone = self._answers.get(NO_SPECULATION, [])
        return tuple(
            compare_transcripts(
                self._prompts,
                answers,
                alone,
                server=setting.text,
                against=NO_SPECULATION.text,
                started=self._started,
                max_tokens=DEFAULT_MAX_TOKENS,
            )
            for setting, answers in self._answers.items()
            if setting.k
        )


def sweep_lossless(
    catalog: Catalog,
    pair: str,
    workloads: Sequence[str],
    progress: TranscriptProgress = lambda server, done, count: None,
) -> SweepLossless:
    """The check with the prompts of the first workload that is a file, else the catalogue's of
    ``pair``, a plan's. Raises UserError for a file without prompts."""
    file = next((Path(name) for name in workloads if name not in WORKLOADS), None)
    prompts = read_prompts(file.expanduser()) if file else prompts_of_pair(catalog, pair)
    return SweepLossless(prompts, progress)


def prompts_of_pair(catalog: Catalog, pair: str | None) -> PromptSet:
    """The prompts with which a deployment of ``pair`` is proved; of an unknown pair, some
    questions."""
    target, _ = find_pair_of_tag(tag_value(pair), catalog) if pair else (None, None)
    texts = target.proof.prompts if target and target.proof else DEFAULT_PROMPTS
    lines = [json.dumps({"prompt": text}) for text in texts]
    return parse_prompts("\n".join(lines).encode(), CATALOGUE)
