"""Which configuration to try next: the search model (model/), Optuna's samplers, first guesses, stopping."""
