# The checks of CONTRIBUTING.md by name: `uvx --from rust-just just test`

# list the checks
default:
    @just --list

# install the package, its tests and its pages, at the versions of uv.lock
install:
    uv sync --extra test --extra docs

# style
style:
    ruff format --check . && ruff check .

# types
types:
    mypy

# pages and docstrings; the site is in build/site
pages:
    mkdocs build --strict

# all tests, or those of FOLDER: `just test tests/text`
test FOLDER="tests":
    pytest -n auto {{FOLDER}}

# generated parts of the pages, and the figures of the structure
figures:
    python docs/generate.py
    python -m tools.source.structure --write

# all checks in fresh clones, as continuous integration runs them
ci:
    .ci/run
