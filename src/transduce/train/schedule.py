"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""


def noam(step: int, d_model: int, warmup: int) -> float:
    """Equation (3): d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), for steps from 1 on.

    Rises over `warmup` steps to (d_model · warmup)^-0.5, then falls with the root of the step.
    """
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
