"""`python -m vaswani_transformer` runs the console script."""

from .cli import main

if __name__ == "__main__":
    main()
