"""`python -m vaswani_transformer` runs the console script."""

from vaswani_transformer.cli import main

if __name__ == "__main__":
    main()
