"""Command line: `python -m codegen`, from the project's top folder."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    from codegen import emit, explain
    from codegen.diagnostics import SpecErrors
    from codegen.model import KernelSpec, helper_kernels
    from codegen.render import Renderer, RenderError
    from codegen.resources import resources
    from codegen.specfile import load_folder
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] not in ("mako", "yaml"):
        raise
    print(
        f"python -m codegen needs {missing.name.partition('.')[0]}: pip install mako pyyaml "
        "(or '.[codegen]')",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

ROOT = Path(__file__).resolve().parent.parent
SPECS = ROOT / "specs"
GENERATED = ROOT / "generated"

EXIT_STALE = 1
EXIT_BAD_INPUT = 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m codegen",
        description="Generate Metal kernels from spec files.",
        epilog="Exit status: 0 done or fresh, 1 stale (--check), 2 a spec or argument is wrong.",
    )
    parser.add_argument(
        "--spec",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="only the kernels of these spec files (default: all in specs/); "
        "the registry and the source list always cover their whole folder",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (default: generated/)"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--check", action="store_true", help="write nothing; print a diff, exit 1 when stale"
    )
    mode.add_argument("--list", action="store_true", help="print the kernels' names")
    mode.add_argument("--explain", action="store_true", help="print each kernel's figures")
    parser.add_argument("--json", action="store_true", help="with --list: all columns, as JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.json and not options.list:
        parser.error("--json goes with --list")
    folder = _spec_folder(parser, options.spec)
    writes = not (options.list or options.explain)
    if writes and options.out is None and folder != SPECS:
        parser.error(f"--out is needed for specs outside {SPECS.name}/")
    try:
        return _run(options, folder)
    except (SpecErrors, RenderError) as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"{place}{error.strerror}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _spec_folder(parser: argparse.ArgumentParser, specs: Sequence[Path] | None) -> Path:
    if specs is None:
        return SPECS
    for path in specs:
        if not path.is_file():
            parser.error(f"--spec {path}: no such file")
        if path.suffix != ".yaml":
            parser.error(f"--spec {path}: spec files end in .yaml")
    folders = sorted({path.resolve().parent for path in specs})
    if len(folders) > 1:
        parser.error("--spec: the files must lie in one folder; run once per folder")
    return folders[0]


def _run(options: argparse.Namespace, folder: Path) -> int:
    files = load_folder(folder)
    in_files = [kernel for file in files for kernel in file.kernels]
    whole = sorted((*in_files, *helper_kernels()), key=lambda kernel: kernel.sort_key)
    chosen = whole
    if options.spec is not None:
        wanted = {f"{folder.name}/{path.name}" for path in options.spec}
        chosen = [kernel for kernel in whole if kernel.spec_path in wanted]
    pairs = [(kernel, resources(kernel)) for kernel in chosen]
    if options.list:
        sys.stdout.write(explain.as_json(pairs) if options.json else explain.names(pairs))
        return 0
    if options.explain:
        sys.stdout.write(explain.table(pairs))
        return 0
    renderer = Renderer()
    texts = {emit.metal_name(kernel): renderer.render(kernel, res) for kernel, res in pairs}
    routes = sorted((r for file in files for r in file.routes), key=lambda r: r.sort_key)
    texts[emit.REGISTRY] = emit.registry_text([(k, resources(k)) for k in whole], routes)
    texts[emit.SOURCES] = emit.sources_text(whole)
    return _finish(options, whole, texts)


def _finish(options: argparse.Namespace, whole: Sequence[KernelSpec], texts: dict[str, str]) -> int:
    out = GENERATED if options.out is None else options.out
    stale = emit.orphans(out, whole)
    if options.check:
        difference = emit.difference(out, texts, stale)
        sys.stdout.write(difference)
        return EXIT_STALE if difference else 0
    touched = emit.write(out, texts, stale)
    print(f"{len(texts)} files in {out.name}/, {len(touched)} changed")
    return 0


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # the same bytes in any locale
    sys.exit(main())
