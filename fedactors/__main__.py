"""``python -m fedactors`` is the command ``fedactors``."""

from fedactors.command_line.main import command

if __name__ == "__main__":
    command()
