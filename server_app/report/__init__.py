"""The report of runs: one HTML file of their accuracy, costs, fleet, clients, faults and config."""
