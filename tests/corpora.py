"""Small corpora in files, one for each kind of text a model is trained on; and reading files."""

from pathlib import Path


def text_files(directory: Path) -> dict:
    """Running text in twenty files, half of them long enough for several rows."""
    for number in range(20):
        lines = [f"Shard {number}, line {line}: é and ж.\n" for line in range(1 + number % 2 * 40)]
        write(directory / f"shard-{number:02}.txt", "".join(lines))
    return dict(source="text_files", path=str(directory))


def translation_files(directory: Path, pairs: int = 50) -> dict:
    for split, count in (("train", pairs), ("validation", 5)):
        for language, word in (("en", "number"), ("de", "Zahl")):
            lines = [f"{split} {word} {number}\n" for number in range(count)]
            write(directory / f"{split}.{language}", "".join(lines))
    languages = dict(source_language="en", target_language="de")
    return dict(source="translation_files", path=str(directory), **languages)


def labelled_text_files(directory: Path) -> dict:
    for split, count in (("train", 50), ("validation", 5)):
        lines = [
            f"{'odd' if number % 2 else 'even'}\tthis is {number}\n" for number in range(count)
        ]
        write(directory / f"{split}.tsv", "".join(lines))
    return dict(source="labelled_text_files", path=str(directory))


def labelled_shards(directory: Path) -> dict:
    """Labelled text in files without named splits: a share becomes the eval set."""
    for shard in range(10):
        lines = [f"{'odd' if number % 2 else 'even'}\t{shard}, {number}\n" for number in range(9)]
        write(directory / f"{shard}.tsv", "".join(lines))
    return dict(source="labelled_text_files", path=str(directory / "*.tsv"))


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by its path from there."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
