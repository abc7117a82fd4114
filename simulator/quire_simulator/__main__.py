"""`python -m quire_simulator` runs the simulator."""

from quire_simulator.command.simulate import simulate

if __name__ == "__main__":
    simulate.main()
