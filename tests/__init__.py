"""The tests of Quire. `CONTRIBUTING.md` says what each folder holds, and how they are run."""
