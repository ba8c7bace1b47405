"""Times in words."""


def duration(seconds: float) -> str:
    """``12 s``, ``3 min``, ``1 h 05 min``, ``4 days``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes / 1440:,.0f} days"
