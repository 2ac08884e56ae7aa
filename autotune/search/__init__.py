"""Which configuration to try next: Optuna ask/tell, seeds from the bottleneck, stopping."""
