"""Holds the optimizers over evaluators that answer in their own time (`gmi_drl.rl`)."""
