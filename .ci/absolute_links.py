"""Makes the links of README.md absolute, for the page of a release, which has no files beside it.

python .ci/absolute_links.py https://HOST/OWNER/REPOSITORY vX.Y.Z
"""

import pathlib
import re
import sys

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


def absolute(text, repository, tag):
    """Return Markdown whose relative links lead to the files of a tag; images to what is in them.

    Args:
        text: Markdown.
        repository: the address of the repository.
        tag: the tag of the release.
    """
    text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)([^)]+)", rf"\g<1>{repository}/raw/{tag}/\g<2>", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!\w+:|#)([^)]+)", rf"\g<1>{repository}/blob/{tag}/\g<2>", text)


if __name__ == "__main__":
    README.write_text(absolute(README.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
