"""Two runs, two arms or two variants: what may be compared, what differs, and what made the difference."""
