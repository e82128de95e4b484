"""`python -m services.checkpoint`: this service alone in a process."""

from services.checkpoint.main import run

if __name__ == "__main__":
    run()
