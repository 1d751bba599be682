"""Kernel text from templates: the only module that knows Mako.

Templates get `cfg` (KernelSpec) and `res` (Resources) and nothing else; a name that neither
defines is an error, also in a branch that is not taken.
"""

from __future__ import annotations

from pathlib import Path

from mako.exceptions import (
    CompileException,
    RichTraceback,
    SyntaxException,
    TopLevelLookupException,
)
from mako.lookup import TemplateLookup

from codegen.model import KernelSpec
from codegen.resources import Resources

TEMPLATE_DIR = Path(__file__).parent / "templates"


class RenderError(Exception):
    """A template is missing or does not render; the message names it and its line."""


class Renderer:
    """Renders kernels with the templates of one folder, each compiled once."""

    def __init__(self, templates: Path = TEMPLATE_DIR) -> None:
        self._lookup = TemplateLookup(
            directories=[str(templates)],
            strict_undefined=True,
            input_encoding="utf-8",
            filesystem_checks=False,
        )
        self._shown = f"codegen/{templates.name}"

    def render(self, cfg: KernelSpec, res: Resources) -> str:
        """Return the text of the kernel's .metal file."""
        try:
            template = self._lookup.get_template(cfg.template)
            text = template.render_unicode(cfg=cfg, res=res)
        except TopLevelLookupException:
            raise RenderError(
                f"{self._shown}/{cfg.template}: no such template, "
                f"but {cfg.location} asks for it ({cfg.name})"
            ) from None
        except Exception as error:
            raise RenderError(self._short(cfg, error)) from error
        return str(text)

    def _short(self, cfg: KernelSpec, error: Exception) -> str:
        """Return where in a template the error arose, without the generated Python's frames."""
        line = f"{type(error).__name__}: {error}"
        if isinstance(
            error, (CompileException, SyntaxException)
        ):  # knows its place, and repeats it in the text
            where = f"{self._shown}/{Path(error.filename).name}:{error.lineno}"
            return f"{where}: {line.split(' in file ')[0]}, rendering {cfg.name}"
        trace = RichTraceback(error=error)
        for _, _, _, _, template_file, template_line, source, _ in reversed(trace.records):
            if template_file is not None:
                where = f"{self._shown}/{Path(template_file).name}:{template_line}"
                return f"{where}: {line}, rendering {cfg.name}\n    {(source or '').strip()}"
        return f"{self._shown}/{cfg.template}: {line}, rendering {cfg.name}"
