"""The survey: a fixed list of open models of nine families, inspected one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources

from layerrope.errors import InputError
from layerrope.inspector.inspection import Inspection


@dataclass(frozen=True)
class Surveyed:
    """One model of the list: its inspection, or why there is none."""

    family: str
    id: str
    inspection: Inspection | None
    why_not: str = ""

    @property
    def cause(self) -> str:
        """`why_not` without the model's own name and address: the same for all when the network is down."""
        without = re.sub(r"https?://\S+?(?=: )", "", self.why_not)
        return without.replace(self.id, "")


def survey_models() -> list[dict[str, str]]:
    """The list, each with `family` and `id`; kept in `survey.json`."""
    text = (resources.files("layerrope.inspector") / "survey.json").read_text(encoding="utf-8")
    return json.loads(text)["models"]


def survey(look: Callable[[str], Inspection]) -> Iterator[Surveyed]:
    """Every model of the list through `look`; one that cannot be reached does not stop the others."""
    for model in survey_models():
        try:
            yield Surveyed(model["family"], model["id"], look(model["id"]))
        except InputError as error:
            yield Surveyed(model["family"], model["id"], None, str(error))
