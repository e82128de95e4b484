"""`python -m services.reconciler`: this service alone in a process."""

from services.reconciler.main import run

if __name__ == "__main__":
    run()
