"""DP-AdamBC (Tang et al. 2023, arXiv 2312.14334): Adam whose second moment loses that of the noise.

Not part of tfdp: clicks and sentences of benchmarks/adam_and_scales.py were no better for it.
"""

import keras
from keras import ops

from tfdp._compat.keras import variable_index


class AdamBC(keras.optimizers.Optimizer):
    """Adam that divides by the root of max(v − φ, floor·φ), φ the noise's part of v.

    Args:
        learning_rate: float or schedule.
        noise_stddev: of the noise in each coordinate of a gradient, σ·C/B̄.
        floor: least second moment, as a multiple of the noise's.
    """

    def __init__(self, learning_rate, noise_stddev, floor, beta_1=0.9, beta_2=0.999, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.noise_stddev, self.floor = noise_stddev, floor
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, 1e-7

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = self.add_optimizer_variables(variables, "momentum")
        self.velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient, variable, learning_rate):
        place = variable_index(self, variable)
        momentum, velocity = self.momentums[place], self.velocities[place]
        step = ops.cast(self.iterations + 1, variable.dtype)
        bias_1, bias_2 = 1 - ops.power(self.beta_1, step), 1 - ops.power(self.beta_2, step)
        self.assign_add(momentum, (gradient - momentum) * (1 - self.beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1 - self.beta_2))
        noise = self.noise_stddev**2 * bias_2
        corrected = ops.maximum(velocity - noise, self.floor * noise)
        rate = learning_rate * ops.sqrt(bias_2) / bias_1
        self.assign_sub(variable, rate * momentum / (ops.sqrt(corrected) + self.epsilon))

    def get_config(self):
        return {
            **super().get_config(),
            "noise_stddev": self.noise_stddev,
            "floor": self.floor,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
        }
