"""The command line: parsers (`main`), what each command does (`commands`), flags of a run, help, completion, templates."""
