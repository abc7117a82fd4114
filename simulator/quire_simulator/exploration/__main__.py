"""`python -m quire_simulator.exploration` explores the states of the replication protocol."""

from quire_simulator.exploration.command import explore

if __name__ == "__main__":
    explore.main()
