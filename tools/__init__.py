"""Programs for people who change this project: campaigns, injected faults, mutated code, measures, screenshots."""
