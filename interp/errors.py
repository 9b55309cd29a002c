"""The errors that are a person's to mend. The command line prints their message as one line, without a traceback."""


class UserError(Exception):
    """Something the person who runs the toolkit can put right: a wrong name, a bad file, a full disk.

    The message says the rule, what was expected, what came and what to do, in one line.
    """


class UsageError(UserError):
    """The command itself is wrong (an unknown analysis, flags that exclude each other): exit code 2, not 1."""


class RunFolderError(UserError):
    """A run folder cannot be used: it is not one, holds another run, is damaged, or is being written by another."""
