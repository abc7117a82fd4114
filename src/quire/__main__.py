"""`python -m quire` is the command `quire`."""

from quire.admin.main import main

if __name__ == "__main__":
    main()
