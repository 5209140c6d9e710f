"""Rounds sizes and offsets of memory up to whole lines, words and pages."""


def round_up(value: int, multiple: int) -> int:
    """Returns `value`, or the next larger number that `multiple` divides."""
    return -(-value // multiple) * multiple
