"""Sphinx settings. ``make docs`` builds the site in ``docs/_build/html`` and treats warnings as errors."""

import ast
import csv
import importlib.metadata
import inspect
import os
import re
import subprocess
import zlib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger
from sphinx.writers.html5 import HTML5Translator

DOCS = Path(__file__).resolve().parent
FILES_OF_THE_REPOSITORY = "https://github.com/sb3-ppg/sb3_ppg/blob/main"

project = "sb3_ppg"
author = "the sb3_ppg developers"
project_copyright = f"2026, {author}"
release = version = importlib.metadata.version("sb3-ppg")
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"sb3_ppg {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "_static/icon.svg"
html_math_renderer = "mathml"

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]
nb_execution_mode = "off"  # the notebook is stored with its outputs

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autodoc_default_options = {"show-inheritance": True}


def inventory(project_name: str, names: dict[str, str]) -> str:
    """
    Write the inventory that Sphinx would otherwise fetch from another project's site, so that building needs no network.

    :param project_name: name of the other project
    :param names: names of its classes, each with its page
    :return: path of a Sphinx inventory, version 2
    """
    lines = [f"{name} py:class 1 {page} -" for name, page in names.items()]
    header = ["# Sphinx inventory version 2", f"# Project: {project_name}", "# Version: ", "# compressed using zlib"]
    path = DOCS / "_build" / "inventories" / f"{project_name}.inv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join([*header, ""]).encode() + zlib.compress("\n".join([*lines, ""]).encode()))
    return str(path)


SB3 = {
    "stable_baselines3.ppo.ppo.PPO": "modules/ppo.html",
    "stable_baselines3.common.base_class.BaseAlgorithm": "modules/base.html",
    "stable_baselines3.common.on_policy_algorithm.OnPolicyAlgorithm": "modules/base.html",
    "stable_baselines3.common.callbacks.BaseCallback": "guide/callbacks.html",
    "stable_baselines3.common.policies.ActorCriticPolicy": "guide/custom_policy.html",
    "stable_baselines3.common.torch_layers.BaseFeaturesExtractor": "guide/custom_policy.html",
    "stable_baselines3.common.vec_env.base_vec_env.VecEnv": "guide/vec_envs.html",
    "stable_baselines3.common.vec_env.vec_normalize.VecNormalize": "guide/vec_envs.html",
}
CONTRIB = {
    "sb3_contrib.ppo_recurrent.ppo_recurrent.RecurrentPPO": "modules/ppo_recurrent.html",
    "sb3_contrib.ppo_mask.ppo_mask.MaskablePPO": "modules/ppo_mask.html",
}
GYMNASIUM = {"gymnasium.core.Env": "api/env/", "gymnasium.Env": "api/env/", "gymnasium.spaces.Space": "api/spaces/"}
TORCH = {
    "torch.Tensor": "tensors.html",
    "torch.nn.Module": "generated/torch.nn.Module.html",
    "torch.optim.Optimizer": "optim.html",
    "torch.device": "tensor_attributes.html",
}
intersphinx_mapping = {
    "sb3": ("https://stable-baselines3.readthedocs.io/en/master/", inventory("Stable-Baselines3", SB3)),
    "sb3-contrib": ("https://sb3-contrib.readthedocs.io/en/master/", inventory("sb3-contrib", CONTRIB)),
    "gymnasium": ("https://gymnasium.farama.org/", inventory("Gymnasium", GYMNASIUM)),
    "torch": ("https://docs.pytorch.org/docs/stable/", inventory("PyTorch", TORCH)),
}


# Tables of results and examples, each with the page that is made of it
GENERATED = {table: DOCS / "results" / table.name for table in DOCS.parent.glob("benchmarks/results/*.md")}
GENERATED |= {script: DOCS / "examples" / f"{script.stem}.md" for script in DOCS.parent.glob("examples/*.py")}
GENERATED |= {notebook: DOCS / "examples" / notebook.name for notebook in DOCS.parent.glob("examples/*.ipynb")}

# Where the rows of a table are in files of other names
ROWS = {
    **dict.fromkeys(("defaults", "images_minatar", "entries", "entries_mujoco"), "matches"),
    "family": "suites family_speed",
    "images": "images_time",
    "seconds_search": "seconds",
    "speed": "speed_training",
    "speed_answered": "speed_[!t]*",
}

LINK = re.compile(r"(?<!!)(?P<text>\[[^\]]*\])\((?P<path>(?!https?:|#)[^)#]+)(?P<anchor>#[^)]*)?\)")


def link_to_the_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Point links that leave ``docs`` to the repository or to the page made of the file; warn of missing files."""

    def link(match: re.Match[str]) -> str:
        path = (DOCS / page).parent.joinpath(match["path"]).resolve()
        if not path.exists():
            getLogger(__name__).warning("no such file: %s", match["path"], location=page)
        if path.is_relative_to(DOCS) and path.suffix == ".md":
            return match[0]
        if path in GENERATED:
            return f"{match['text']}({os.path.relpath(GENERATED[path], (DOCS / page).parent)}{match['anchor'] or ''})"
        return f"{match['text']}({FILES_OF_THE_REPOSITORY}/{path.relative_to(DOCS.parent)}{match['anchor'] or ''})"

    source[0] = LINK.sub(link, source[0])


def write_pages(app: Sphinx) -> None:
    """Write the pages of ``GENERATED``, and remove those of files that have gone."""
    for page in {*DOCS.glob("results/*"), *DOCS.glob("examples/*")} - {*GENERATED.values()}:
        if page.is_file():
            page.unlink()
    for source, page in GENERATED.items():
        text = source.read_text().replace("](../docs/", "](../")
        if source.suffix == ".md":
            text = f"```{{include}} ../../benchmarks/results/{source.name}\n:relative-images:\n```\n{origin(source)}"
        elif source.suffix == ".py":
            docstring, first, *_ = ast.parse(text).body
            about = f"```{{eval-rst}}\n{inspect.cleandoc(ast.literal_eval(docstring.value))}\n```"
            code = f"```{{literalinclude}} ../../examples/{source.name}\n:lines: {first.lineno}-\n```"
            link = f"[In the repository]({FILES_OF_THE_REPOSITORY}/examples/{source.name})"
            text = f"# {source.name}\n\n{about}\n\n{code}\n\n{link}\n"
        page.parent.mkdir(exist_ok=True)
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def origin(table: Path) -> str:
    """Return a list of the files with the rows of a table: hours, processors and, inside a Git repository, their commits."""
    names = ROWS.get(table.stem, f"{table.stem}*").split()
    lines = ["The rows, with the commits that last wrote them, their processors and hours:\n"]
    for path in (path for name in names for path in sorted(table.parent.glob(f"{name}.csv"))):
        if path.stem.endswith("_curves"):  # of the same runs
            continue
        blame = subprocess.run(["git", "blame", "--date=short", path], cwd=table.parent, capture_output=True, text=True).stdout
        found = re.findall(r"^([0-9a-f]{7})\S* .*? (\d{4}-\d\d-\d\d) +(\d+)\) ", blame, re.MULTILINE)
        commits = sorted({f"{date} {commit}" for commit, date, number in found if number != "1"})  # without the header
        about = commits if len(commits) < 6 else [f"{len(commits)} commits, {commits[0][:10]} to {commits[-1][:10]}"]
        with path.open() as file:
            rows = list(csv.DictReader(file))
        about += sorted({row[column] for row in rows for column in ("machine", "processor") if row.get(column)})
        seconds = [float(row["seconds"]) for row in rows if row.get("seconds")]
        about += [f"{sum(seconds) / 3600:.1f} hours in its column `seconds`"] if seconds else []
        link = f"[{path.name}]({FILES_OF_THE_REPOSITORY}/benchmarks/results/{path.name})"
        lines.append(f"- {': '.join(filter(None, [link, '; '.join(about)]))}")
    return "\n".join(["", *lines, ""])


def add_defaults(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Begin the description of each optional parameter with its default."""
    parameters = inspect.signature(obj).parameters if what in ("class", "function", "method") else {}
    for i, line in enumerate(lines):
        match = re.match(r":param (\w+): ", line)
        if match and match[1] in parameters and parameters[match[1]].default is not inspect.Parameter.empty:
            lines[i] = f"{match[0]}default ``{parameters[match[1]].default!r}``: {line[match.end() :]}"


def write_formula(self: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers set without scripts from a network."""
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect the functions above to Sphinx's events."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("builder-inited", write_pages)
    app.connect("source-read", link_to_the_repository)
    app.connect("autodoc-process-docstring", add_defaults)
