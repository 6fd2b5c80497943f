"""Each program of the corpus, audited on the tape and on a GPU where there is one: what is marked is found, by its rule and
at its line, and nothing else."""

import os
from types import SimpleNamespace

import corpus
import pytest

pianola = pytest.importorskip("pianola")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("program", corpus.programs(), ids=lambda program: program.name)
def test_the_audit_finds_what_is_marked_and_nothing_else(program, device):
    reason = program.why_not(device)
    if reason == "no GPU" and os.environ.get("PIANOLA_REQUIRE_CUDA") == "1":
        pytest.fail("PIANOLA_REQUIRE_CUDA is set, but torch sees no GPU")
    if reason:
        pytest.skip(reason)
    known = corpus.KNOWN_MISSES.get((program.name, device))
    report, verdict = corpus.audited(program, device)
    if known is not None:
        assert verdict.missed, f"found by now; take it off corpus.KNOWN_MISSES:\n{report.to_text()}"
        pytest.xfail(known)
    wrong = [f"missed: {each}" for each in verdict.missed]
    wrong += [f"wrong line: {corpus.in_words(one, program)}; expected {each}" for one, each in verdict.wrong_line]
    wrong += [f"false alarm: {corpus.in_words(one, program)}" for one in verdict.false_alarms]
    assert not wrong, "\n".join([*wrong, report.to_text()])


def test_every_rule_that_a_step_can_show_is_in_the_corpus():
    # A thread of its own, a replay, a pipeline, an old library, a full device: see tools/hazards_doc.py.
    elsewhere = {"PG705", "PG707", "PG908", "PG909", "PG1006", "PG1009", "PG1102", "PG1105", "PG1107"}
    shown = {
        rule
        for program in corpus.programs()
        for device in ("cpu", "cuda")
        if (program.name, device) not in corpus.KNOWN_MISSES and not (device == "cpu" and program.cuda_only)
        for expectation in program.expected(device)
        if not expectation.optional
        for rule in expectation.rules
    }
    assert set(corpus.hazard_rules()) - shown == elsewhere


def test_each_wrong_program_is_marked_and_no_other_is():
    for program in corpus.programs():
        assert program.is_clean != program.name.endswith("_wrong"), program.name


def example(tmp_path, text):
    path = tmp_path / "example.py"
    path.write_text(text)
    return corpus.Program("group/example", path)


def finding(rule, line, file="/x/example.py"):
    return SimpleNamespace(rule=rule, line=line, file=file)


def test_a_finding_counts_only_at_its_line(tmp_path):
    program = example(tmp_path, '"""x"""\na\nb  # hazard: PG101\n')
    assert corpus.judge(program, "cpu", [finding("PG101", 3)]).ok
    verdict = corpus.judge(program, "cpu", [finding("PG101", 2)])
    assert len(verdict.wrong_line) == 1 and not verdict.missed and not verdict.false_alarms
    verdict = corpus.judge(program, "cpu", [finding("PG101", 3, "/x/other.py")])
    assert len(verdict.wrong_line) == 1
    assert corpus.judge(program, "cpu", []).missed[0].rules == ("PG101",)


def test_a_finding_of_another_rule_is_a_miss_and_a_false_alarm(tmp_path):
    program = example(tmp_path, '"""x"""\nb  # hazard: PG101\n')
    verdict = corpus.judge(program, "cpu", [finding("PG103", 2)])
    assert len(verdict.missed) == 1 and len(verdict.false_alarms) == 1


def test_marks_may_be_of_either_rule_shared_optional_and_of_one_device(tmp_path):
    text = '"""x"""\na  # hazard: PG401|PG802, PG202@cuda\nb  # hazard: PG501*, PG304?\nc  # hazard: PG501*\n# hazard: PG905\n'
    program = example(tmp_path, text)
    found = [finding("PG802", 2), finding("PG501", 4), finding("PG905", 0, "")]
    assert corpus.judge(program, "cpu", found).ok
    assert [each.rules for each in corpus.judge(program, "cuda", found).missed] == [("PG202",)]
    assert corpus.judge(program, "cpu", [*found, finding("PG304", 3)]).ok
    assert not corpus.judge(program, "cpu", [*found, finding("PG304", 4)]).ok


def test_a_clean_program_allows_nothing(tmp_path):
    program = example(tmp_path, '"""x"""\na\n')
    assert program.is_clean
    assert len(corpus.judge(program, "cpu", [finding("PG804", 2)]).false_alarms) == 1
