"""The package's own exception."""


class UnsupportedError(ValueError):
    """A well-formed request that flashrt does not support here.

    The message names the argument, its value, what is supported and a way out.
    """
