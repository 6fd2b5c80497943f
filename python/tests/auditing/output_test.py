"""The clock, and what is printed or logged."""

import datetime
import logging
import time


from marked_steps import check, findings_of, inputs


def test_the_clock(device):
    def step(x):
        begin = time.perf_counter()  # PG305
        y = x * 2
        time.time(), time.monotonic_ns()  # PG305
        datetime.datetime.now()  # PG305
        return y if begin > 0 else x

    check(test_the_clock, step, batches=inputs(device))


def test_output(device, tmp_path):
    def step(x):
        print("a step")  # PG804
        logging.getLogger("audit_test").warning("a step")  # PG804
        with open(tmp_path / "log", "a") as log:  # PG804
            log.write("a step\n")  # PG804
        return x * 2

    report = check(test_output, step, batches=inputs(device))
    assert report.ok and {one.severity for one in findings_of(report)} == {"style"} and report.exit_code == 0


def test_logging_below_the_level_is_no_output(device):
    def step(x):
        logging.getLogger("audit_test").debug("a step")
        return x * 2

    check(test_logging_below_the_level_is_no_output, step, batches=inputs(device))
