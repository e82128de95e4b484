"""`python -m services.scheduler`: this service alone in a process."""

from services.scheduler.main import run

if __name__ == "__main__":
    run()
