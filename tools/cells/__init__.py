"""FedOptima+ against the two strongest baselines, trained on a few other fleets."""
