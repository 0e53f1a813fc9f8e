"""``checkpoint``: describe the contents of a checkpoint file, and convert it."""

from ..errors import AmpError
from ..support.terminal import show
from ..tools.checkpoint_files import LAYOUTS, Contents, convert, read, write
from .argument_parser import CommandParser


def checkpoint(arguments):
    """Describe a file; with ``--to``, write it in another layout and describe that one too."""
    parser = CommandParser(
        prog="ampcompat checkpoint", description="Describe the contents of a checkpoint. Reading it cannot run code."
    )
    parser.add_argument("file", metavar="FILE", help="a file of torch.save")
    parser.add_argument(
        "--to", choices=LAYOUTS, metavar="LAYOUT", help="O1, O2 or apex: for amp.initialize; torch: for GradScaler"
    )
    parser.add_output("-o", "--output", metavar="FILE", help="where to write the converted file")
    options = parser.parse_args(arguments)
    if (options.to is None) != (options.output is None):
        parser.error("--to and -o belong together: --to {} -o FILE".format("|".join(LAYOUTS)))
    parser.check_outputs(options, [options.file])
    try:
        content = read(options.file)
        show("\n".join(Contents(content).lines()))
        if options.to:
            result = convert(content, options.to)
            write(result, options.output)
            show(f"\nwrote {options.output}:")
            show("\n".join(Contents(result).lines()))
    except AmpError as error:
        parser.error(str(error))
    except Exception as error:  # of entries with the names of amp's, torch's or Apex's, but with other content
        parser.error(f"{options.file} has entries of an unknown structure: {type(error).__name__}: {error}.")
    return 0
