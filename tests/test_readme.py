"""The README's program runs as it says (its first example runs as a doctest)."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf8")


def test_the_program_for_torchrun(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(# average\.py\n.*?)```", README, flags=re.DOTALL)
    (tmp_path / "average.py").write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "average.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 ranks, average 1.0\n"


def test_the_folders_it_names_exist() -> None:
    root = Path(__file__).parent.parent
    for folder in re.findall(r"^\| `([a-z/]+)` \|", README, flags=re.MULTILINE):
        assert (root / folder).is_dir(), folder
