"""The counts that `make test` ends with."""

import textwrap
from xml.etree import ElementTree

import pytest
import run_tests

GTEST = """\
<testsuites><testsuite>
  <testcase name="a" status="run" result="completed"/>
  <testcase name="b" status="run" result="skipped"><skipped message="no CUDA device"/></testcase>
  <testcase name="c" status="run" result="completed"><failure message="1 != 2"/></testcase>
  <testcase name="d" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""


def ctest(name, status):
    inner = "<failure/>" if status == "fail" else ""
    return f'<testsuite><testcase name="{name}" status="{status}">{inner}</testcase></testsuite>'


@pytest.fixture
def summarise(tmp_path):
    def count(report, **results):
        (tmp_path / "ctest.xml").write_text(report)
        for name, text in results.items():
            (tmp_path / f"{name}.xml").write_text(text)
        counts = run_tests.summarise(tmp_path / "ctest.xml", tmp_path)
        return counts["passed"], counts["failed"], counts["skipped"]
    return count


def test_cases_of_googletest_are_counted(summarise):
    assert summarise(ctest("core", "fail"), core=GTEST) == (1, 1, 2)


def test_any_other_test_counts_as_one(summarise):
    assert summarise(ctest("package.install", "run")) == (1, 0, 0)
    assert summarise(ctest("package.install", "fail")) == (0, 1, 0)
    assert summarise(ctest("package.install", "notrun")) == (0, 0, 1)


def test_a_crash_after_good_cases_is_a_failure(summarise):
    passed = '<testsuites><testcase name="a" status="run" result="completed"/></testsuites>'
    assert summarise(ctest("core", "fail"), core=passed) == (1, 1, 0)


def test_a_torn_result_file_is_a_failure(summarise):
    assert summarise(ctest("core", "fail"), core="<testsuites><testca") == (0, 1, 0)


def test_errors_of_pytest_are_failures():
    case = ElementTree.fromstring(textwrap.dedent('<testcase name="a"><error message="fixture"/></testcase>'))
    assert run_tests.outcome(case) == "failed"
