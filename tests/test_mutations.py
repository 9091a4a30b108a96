"""The table of known faults is in step with the code, the tests and its page (mutations.py)."""

import ast
from pathlib import Path

import pytest
from mutations import PAGE, Fault, page, read, table

TESTS = Path(__file__).parent
RIGHT, FAULTS = read()

# The cases of shared/requirements/cases.md whose code exists.
NUMBERS = [1, 3, 4, 5, 6, 7, 10, 12, 13, 14, 17, 18, 19, 23, 25, 27, 29, 31, 32]
NUMBERS += [34, 35, 36, 37, 38, 39, 43, 44, 52, 53]
REQUIRED = {f"R{number:02}" for number in NUMBERS}


def test_each_case_has_a_fault():
    assert list(RIGHT) == sorted(RIGHT)
    assert {fault.case for fault in FAULTS} >= REQUIRED


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.case} {fault.kind}")
def test_a_fault_can_be_put_into_the_code_and_its_tests_exist(fault: Fault):
    assert fault.times() == 1
    assert fault.old != fault.new
    assert fault.tests
    for test in fault.tests:
        file, name = test.partition("[")[0].split("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_page_says_what_the_table_says():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text, table(RIGHT, FAULTS)), "run: python tests/mutations.py"
