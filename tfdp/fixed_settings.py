"""Layer settings that cannot change later, because the charges depend on them."""


class FixedSettings:
    """Refuses other values of the attributes named in `fixed`, once they have one."""

    fixed = ()

    def __setattr__(self, name, value):
        if name in self.fixed and name in vars(self):
            raise AttributeError(
                f"`{name}` of a {type(self).__name__} cannot be changed, because the charges "
                f"depend on it. Make a new object. Received: {name}={value}"
            )
        super().__setattr__(name, value)
