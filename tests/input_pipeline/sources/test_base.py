from input_pipeline.sources.base import content_digest, hash_fraction


def test_fractions_are_fixed_and_even():
    # Another value would move every example to another split: runs could not be compared.
    assert hash_fraction("1987-03-09") == 0.5155526489046132
    fractions = [hash_fraction(str(i)) for i in range(4000)]
    for tenth in range(10):
        inside = sum(tenth <= 10 * f < tenth + 1 for f in fractions)
        assert 330 < inside < 470


def test_digests_tell_where_a_part_ends():
    assert content_digest(["ab", "c"]) != content_digest(["a", "bc"])
    assert content_digest(["ab", "c"]) == content_digest([b"ab", b"c"])
