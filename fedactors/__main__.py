"""``python -m fedactors`` is the command ``fedactors``."""

from fedactors.cli.main import command

if __name__ == "__main__":
    command()
