"""Checks of settings, for the ``__post_init__`` of a `Config`."""


def check_at_least(settings: object, /, **least: float) -> None:
    """Refuse a setting that is below the least value given under its name; None is no value and passes.

    Raises:
        ValueError: naming the setting, its least value and what came.
    """
    for name, limit in least.items():
        value = getattr(settings, name)
        if value is not None and value < limit:
            raise ValueError(f"{name} must be at least {limit}; got {value}")
