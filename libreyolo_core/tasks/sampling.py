"""Which images of a split are shown in pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` indices spread evenly over ``range(count)``, in order."""
    return sorted({k * count // most for k in range(most)}) if count else []


def spread_over_labelled(indices: Iterable[int], labelled: Callable[[int], bool], most: int) -> list[int]:
    """At most ``most`` of ``indices`` in order, spread evenly over the labelled ones; the others fill up when there
    are fewer."""
    indices = sorted(indices)
    chosen = [i for i in indices if labelled(i)]
    if len(chosen) >= most:
        return [chosen[k] for k in spread(len(chosen), most)]
    background = [i for i in indices if not labelled(i)]
    return sorted(chosen + background[: most - len(chosen)])
