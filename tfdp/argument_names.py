"""Arguments that other libraries have: the error says what to give tfdp instead."""

import functools


def explains(instead):
    """Decorator of a function: a TypeError for one of these arguments says what to do.

    Args:
        instead: {argument of another library, which the function does not have: a sentence}.
    """

    def decorate(function):
        @functools.wraps(function)
        def explained(*args, **kwargs):
            for name, value in kwargs.items():
                if name in instead:
                    of = function.__qualname__.removesuffix(".__init__")
                    raise TypeError(
                        f"`{of}` has no argument `{name}`. {instead[name]} Received: {name}={value}"
                    )
            return function(*args, **kwargs)

        return explained

    return decorate


def called(name):
    """The sentence for an argument that only has another name."""
    return f"tfdp calls it `{name}`."
