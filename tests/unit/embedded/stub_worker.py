"""A real Celery worker with one task, for the platform's tests."""

import os
import sys

from celery import Celery

app = Celery("stub", broker=os.environ["DREAMGYM_BROKER_URL"])
app.conf.task_ignore_result = True


@app.task(name="stub.touch")
def touch(path: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - as plain as a task can be
        file.write(str(os.getpid()))


if __name__ == "__main__":
    options = ["--concurrency=1", "--loglevel=INFO", "--queues=train", "--without-gossip", "--without-mingle"]
    app.worker_main(["worker", *options, *sys.argv[1:]])
