"""The rule that decides which tests `make test-fast` leaves out."""

import equinox as eqx
import jax

import largeprompt as lp

from .slow import SLOW_NAMES, slow_definitions

FILE = """
TABLE = {"flow": lambda: lp.gradient_flow(task, start, 10)}
CASES: list = [quick]

@pytest.fixture
def started(): return subprocess.Popen(command)

def _trained(): return lp.descend(key, task, start, 10, 5)
def _indirectly(): return _trained()
def quick(x): return lp.attend(head, mu, x)

@pytest.mark.parametrize("name", TABLE)
def test_from_a_table(name): assert TABLE[name]()
def test_in_a_process(started): assert started.poll() is None
def test_through_two_helpers(): assert _indirectly()
def test_of_a_study(reproduced): assert reproduced.exists()
@pytest.mark.parametrize("case", CASES)
def test_quick(case): assert case(1.0) == 1.0
"""


def test_slow_definitions_follows_helpers_fixtures_and_tables():
    assert slow_definitions(FILE) == {
        *("TABLE", "started", "_trained", "_indirectly"),
        *("test_from_a_table", "test_in_a_process", "test_through_two_helpers", "test_of_a_study"),
    }


def test_slow_names_of_the_library_exist():
    """A function that is renamed must be renamed in the rule."""
    of_tests = {"subprocess", "driving", "processes", "browser", "reproduced", "section_6"}
    of_tests |= {"simulation", "brute_force", "torch", "transformers", "tiny_transformer"}
    places = (lp, lp.LinearRegression, lp.Gaussian, jax, eqx)
    for name in SLOW_NAMES - of_tests:
        assert any(hasattr(place, name) for place in places), name


def test_slow_mark_is_not_given_to_this_test(request):
    assert request.node.get_closest_marker("slow") is None


def test_slow_mark_is_given_to_this_test(request):
    """Because it uses the name `subprocess`."""
    subprocess = request.node.get_closest_marker("slow")
    assert subprocess is not None
