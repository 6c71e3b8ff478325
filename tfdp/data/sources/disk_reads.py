"""Whether records come from a disk, or from what the system keeps of it in memory."""

# Records that took so many seconds each, probably: from memory a short one takes 1e-6 to 5e-6. A
# few records take as long as some more would.
_OF_A_DISK, ENOUGH = 3e-5, 32


def was_from_disk(seconds, records):
    """Whether a read of so many records that took so long waited for a disk."""
    return seconds > _OF_A_DISK * max(records, ENOUGH)
