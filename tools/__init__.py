"""Programs for whoever changes this project: campaigns, faults in packages, mutations of code, pictures of pages."""
