"""Programs for people who change this project: campaigns, faults in packages, mutated code, pictures of web pages."""
