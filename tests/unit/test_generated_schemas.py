from cascade_schemas.generate import ROOT, generated


def test_generated_files_are_current():
    for path, text in generated().items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)} is stale: run `make schemas`"
