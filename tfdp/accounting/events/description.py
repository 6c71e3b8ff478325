"""Events in words."""

from tfdp.accounting.rounding import round_down, round_up


def describe(event):
    """One line on an event's kind and parameters."""
    if hasattr(event, "in_words"):
        return event.in_words()
    name = type(event).__name__.removesuffix("DpEvent")
    if name == "PoissonSampled":
        sampled = round_up(event.sampling_probability, 6)
        return f"{describe(event.event)}, Poisson sampled with probability {sampled}"
    if name == "PoissonSampledConcentrated":
        sampled = event.sampling_probability
        how = f", Poisson sampled with probability {round_up(sampled, 6)}" if sampled < 1 else ""
        sigma = round_down(event.noise_multiplier)
        return f"mechanism as concentrated as Gaussian noise of multiplier {sigma}{how}"
    if name == "MixtureOfGaussians":
        most = max(event.sensitivities)
        mean = sum(w * c for w, c in zip(event.sampling_probs, event.sensitivities, strict=True))
        return (
            f"Gaussian noise of multiplier {round_down(event.standard_deviation)} on a sum that "
            f"one unit of privacy moves by a random number of clip norms ({round_up(mean, 6)} on "
            f"average, at most {most:g})"
        )
    if name == "Gaussian":
        return f"Gaussian noise of multiplier {round_down(event.noise_multiplier)}"
    if name == "Laplace":
        return f"Laplace noise of multiplier {round_down(event.noise_multiplier)}"
    if name == "SelfComposed":
        return f"{event.count} x {describe(event.event)}"
    if name == "Composed":
        return " and ".join(describe(part) for part in event.events)
    if name == "RepeatAndSelect":
        how = f"{round_up(event.mean, 6)} on average, shape {event.shape:g}"
        return f"the best of a random number of runs ({how}) of: {describe(event.event)}"
    if name == "NonPrivate":
        return "training or a release without noise (not private)"
    return str(event)
