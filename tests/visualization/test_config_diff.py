"""What differs between configs."""

from visualization.config_diff import ABSENT, differences_between, flat


def test_keys_are_dotted_and_empty_sections_stay():
    config = {"a": 1, "b": {"c": {"d": [1, 2]}, "e": {}}}
    assert flat(config) == {"a": 1, "b.c.d": [1, 2], "b.e": {}}


def test_only_what_differs_is_listed_with_the_value_of_each_run():
    configs = [
        {"steps": 10, "model": {"width": 64, "norm": "rmsnorm"}, "seed": 0},
        {"steps": 10, "model": {"width": 128, "norm": "rmsnorm"}, "seed": 0.0},
        {"steps": 20, "model": {"width": 64, "norm": "rmsnorm", "extra": ""}, "seed": 0},
    ]
    assert differences_between(configs) == [
        ("steps", ["10", "10", "20"]),
        ("model.width", ["64", "128", "64"]),
        ("model.extra", [ABSENT, ABSENT, '""']),
    ]


def test_the_same_configs_have_no_differences():
    assert differences_between([{"a": {"b": (1, 2)}}, {"a": {"b": (1, 2)}}]) == []


def test_a_config_that_could_not_be_read_is_not_compared():
    assert differences_between([{"a": 1, "b": 2}, {}, {"a": 1, "b": 3}]) == [
        ("b", ["2", ABSENT, "3"])
    ]
    assert differences_between([{"a": 1}, {}]) == []


def test_a_value_in_place_of_a_section_is_a_difference():
    rows = dict(differences_between([{"a": {"b": 1}}, {"a": None}]))
    assert rows == {"a.b": ["1", ABSENT], "a": [ABSENT, "null"]}
