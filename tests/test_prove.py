"""The proof's own choices."""
import subprocess

import prove


def test_quick_runs_the_copies_of_changed_notebooks_alone(tmp_path, monkeypatch):
    for name in ("04_a", "05_b", "practice/04_a", "practice/05_new"):
        for folder in ("", "build/colab/"):
            path = tmp_path / f"{folder}chapters/{name}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "chapters/04_a.ipynb", "chapters/05_b.ipynb", "chapters/practice/04_a.ipynb"], ["commit", "-qm", "."]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    copies = tmp_path / "build/colab"
    assert [p.name for p in prove.chosen(copies, quick=True)] == ["05_new.ipynb"], "one that git does not know counts"
    (tmp_path / "chapters/practice/04_a.ipynb").write_text("{ }")
    (tmp_path / "chapters/05_b.ipynb").unlink()
    (copies / "chapters/05_b.ipynb").unlink()
    assert [str(p.relative_to(copies)) for p in prove.chosen(copies, quick=True)] == ["chapters/practice/04_a.ipynb", "chapters/practice/05_new.ipynb"]
    assert len(prove.chosen(copies, quick=False)) == 3
