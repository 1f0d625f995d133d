"""The command line: parsers, flags of a run, what each command does, help about settings, completion, templates."""
