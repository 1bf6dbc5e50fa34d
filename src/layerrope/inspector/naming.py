"""Names of strangers made safe, in one place: what is shown, and what tells one thing from another.

A tensor's name may hold anything: control characters, half a surrogate pair, 100,000 letters. `with_safe_roles` turns
every role into one that can be printed, drawn and used as a key, before anything else sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from layerrope.norm_sites import NormTensor
from layerrope.tensors.blobs import printable

#: A role is shown in at most so many characters.
LONGEST_ROLE = 80
#: Of remarks that are many, so many are said.
MOST_SAID = 12


def with_safe_roles(norms: Sequence[NormTensor]) -> list[NormTensor]:
    """`norms` under roles that are printable, short, and as different as they were."""
    roles = list(dict.fromkeys(norm.role for norm in norms))
    safe = dict(zip(roles, unique(map(_shown, roles)), strict=True))
    return [replace(norm, role=safe[norm.role]) for norm in norms]


def _shown(role: str) -> str:
    return shortened(printable(role, 1 << 16), LONGEST_ROLE)


def shortened(text: str, most: int | None) -> str:
    """`text` in at most `most` characters: its middle gives way, since the ends of a name tell most."""
    if most is None or len(text) <= most:
        return text
    tail = (most - 1) * 2 // 3
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"


def unique(names: Iterable[str], same: Callable[[str], str] = str, numbered: str = "{} ({})") -> list[str]:
    """`names` with a number at those that were there before; `same` says what counts as one.

    >>> unique(["a", "b", "a", "a (2)"])
    ['a', 'b', 'a (2)', 'a (2) (2)']
    """
    seen: set[str] = set()
    made = []
    for name in names:
        number, new = 1, name
        while same(new) in seen:
            number += 1
            new = numbered.format(name, number)
        seen.add(same(new))
        made.append(new)
    return made


def file_names(names: Iterable[str]) -> list[str]:
    """`names` as names of files without an ending: letters, digits, `._-`, short; none twice, whatever the case."""
    clean = [re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[-80:] or "model" for name in names]
    return unique(clean, str.casefold, "{}-{}")


def array_names(roles: Sequence[str]) -> dict[str, str]:
    """Role -> its array's name inside an npz, which is a file's name there: no path, nothing beyond ASCII."""
    clean = (re.sub(r"[^A-Za-z0-9._:*-]", "_", role) for role in roles)
    return dict(zip(roles, unique(clean, numbered="{}_{}"), strict=True))


def at_most(remarks: Sequence[str], most: int = MOST_SAID) -> list[str]:
    """The first `most` of `remarks`, and how many more there are."""
    rest = len(remarks) - most
    return [*remarks[:most], *([f"and {rest} more"] if rest > 0 else [])]
