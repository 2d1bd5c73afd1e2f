"""One-line messages for errors that the user of a command can fix."""


def one_line(error: Exception) -> str:
    """What went wrong; of an operating system's error the file and the reason, without its number."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was refused: of numpy's and torch's arrays, on a CPU or a GPU."""
    refused = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return refused or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its class."""
    return (str(error).splitlines() or [type(error).__name__])[0]
