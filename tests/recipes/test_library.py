"""Models and recipes by name or path, and what each mistake is told."""

from __future__ import annotations

import pytest

from pyro_fed.errors import ModelError, SettingError
from pyro_fed.recipes import library


@pytest.mark.parametrize("find", [library.find_recipe, library.find_model])
@pytest.mark.parametrize(("name", "part"), [("absent_x", "no .* 'absent_x'"), ("a/absent.{}", "does not exist")])
def test_absent_files(find, name, part):
    suffix = "toml" if find is library.find_recipe else "py"
    with pytest.raises((SettingError, ModelError), match=part):
        find(name.format(suffix))


def test_a_near_name_is_suggested():
    with pytest.raises(SettingError, match=r"did you mean .*'dsvgd'"):
        library.find_recipe("dsvdg")


MODEL_FILE = '''"""A model of nothing.

More text.
"""

PLATE = "data"

def model(x):
    return x

def load_data():
    return (1,), (2,)
'''


@pytest.mark.parametrize("packaged", [True, False])
def test_library_of_a_wheel_and_of_a_checkout(tmp_path, monkeypatch, packaged):
    package = tmp_path / "pyro_fed"
    (package / "_library" if packaged else package).mkdir(parents=True)
    monkeypatch.setattr(library, "__file__", str(package / "recipes" / "library.py"))
    expected = package / "_library" / "models" if packaged else tmp_path / "models"
    assert library.library_folder("models") == expected


def test_load_model_by_path(tmp_path):
    first, second = tmp_path / "a" / "torch.py", tmp_path / "b" / "torch.py"
    for path, number in ((first, 1), (second, 5)):
        path.parent.mkdir()
        path.write_text(MODEL_FILE.replace("(1,)", f"({number},)"))
    loaded = [library.load_model(path) for path in (first, second)]
    assert [module.load_data()[0] for module in loaded] == [(1,), (5,)]
    assert library.model_description(first) == "A model of nothing."


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("PLATE = 'data'\ndef model(x): pass\n", "does not define load_data"),
        ("def model(:\n", "SyntaxError"),
        ("import no_such_package_x\n", "ModuleNotFoundError: .*no_such_package_x"),
        ("x = undefined_name\n", "NameError"),
    ],
)
def test_mistakes_in_a_model_file(tmp_path, text, part):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ModelError, match=part) as caught:
        library.load_model(path)
    assert str(path) in str(caught.value)


def test_a_model_whose_clients_have_their_rows_needs_no_data(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("PLATE = 'data'\ndef model(x): pass\n")
    assert library.load_model(path, with_data=False).PLATE == "data"
    path.write_text("def model(x): pass\n")
    with pytest.raises(ModelError, match="does not define PLATE;"):
        library.load_model(path, with_data=False)
